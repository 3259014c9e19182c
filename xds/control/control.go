package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/policies"
	policylength "github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/nodeauth"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/length"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Control is the control plane of a fleet. All methods may be called from any
// goroutine; Run once.
type Control struct {
	cfg       Config // complete
	log       *slog.Logger
	fleet     *fleet.Fleet
	names     *replicaNames
	cache     *servingCache
	ledger    *publish.Ledger
	xds       *server.Server
	publisher *publish.Publisher
	submitter *submitter
	auth      *nodeauth.Authenticator // nil: clients are not authenticated
	length    *length.Server          // nil: another process estimates lengths
	loads     *proxyLoads
	adapters  adapterIndex
	slots     *slotManager
	planes    *planeNotes
	uploads   chan struct{} // capacity maxUploads: bodies that are read at a time
	pushes    chan struct{} // capacity 1: one push is admitted at a time
	refusals  *refusals
	health    *health.Server
	registry  *prometheus.Registry
	console   *console.Console
	observer  observer

	secretsRefused atomic.Uint64

	listener, admin net.Listener
	lengthListener  net.Listener // of the length service's own port; nil: none
}

// New checks the configuration and binds the sockets, so that an address in use
// is found here and the addresses are known. It starts nothing. A Control that
// is not run must be closed.
func New(cfg Config) (*Control, error) {
	cfg = cfg.complete()
	c := &Control{cfg: cfg, log: cfg.Logger, health: health.NewServer(), uploads: make(chan struct{}, maxUploads), pushes: make(chan struct{}, 1)}
	c.health.SetServingStatus("", healthv1.HealthCheckResponse_NOT_SERVING) // until the first plan is published
	if err := c.init(); err != nil {
		c.Close()
		return nil, fmt.Errorf("control: %w", err)
	}
	return c, nil
}

func (c *Control) init() error {
	c.listener, c.admin = c.cfg.Listener, c.cfg.AdminListener
	if err := c.cfg.validate(); err != nil {
		return err
	}
	var err error
	if c.listener == nil {
		if c.listener, err = net.Listen("tcp", c.cfg.Listen); err != nil {
			return err
		}
	}
	if c.admin == nil {
		if c.admin, err = net.Listen("tcp", c.cfg.Admin); err != nil {
			return fmt.Errorf("admin: %w", err)
		}
	}
	c.registry = prometheus.NewRegistry()
	c.registry.MustRegister(collector{c})
	if c.cfg.Audit != nil {
		c.registry.MustRegister(c.cfg.Audit)
	}
	for _, more := range c.cfg.Collectors {
		if err := c.registry.Register(more); err != nil {
			return fmt.Errorf("Collectors: %w", err)
		}
	}
	if c.cfg.TrustDomain != "" {
		if c.auth, err = nodeauth.New(nodeauth.Config{TrustDomain: c.cfg.TrustDomain, TLS: c.cfg.TLS, OnRefusal: c.auditClient, Logger: c.log}); err != nil {
			return err
		}
	}
	settings := c.cfg.Settings
	settings.EdgeTLS = c.cfg.EdgeCertificate != nil
	if settings.Estimator == resources.ExtProc && settings.LengthService == "" {
		if settings.LengthService, err = c.initLength(); err != nil {
			return err
		}
	}
	c.names = newReplicaNames(c.cfg)
	replicas, err := c.names.start(c.cfg.Replicas)
	if err != nil {
		return err
	}
	// The settings do not change, so a fleet that cannot be rendered now never can.
	if err := checkRenderable(settings, c.cfg.EdgeCertificate, c.cfg.Models, replicas); err != nil {
		return err
	}
	groups, err := resources.NewGroups(c.cfg.Groups)
	if err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	groupOf := func(n *corev3.Node) string { return groups.GroupOf(n.GetId(), n.GetCluster()) }
	c.cache = &servingCache{Cache: cache.New(cache.Config{Group: groupOf, SecretsFor: c.maySeeSecrets}), onServing: c.setServing, sets: make(map[string]resources.Set)}
	c.slots = newSlotManager(c)
	c.planes = &planeNotes{store: c.cfg.Store, file: fleetFile{FleetFile: fleetFileOf(c.cfg)}}
	c.ledger = publish.NewLedger(c.log)
	c.xds, err = server.New(server.Config{Cache: c.cache, Callbacks: c.ledger, Limits: c.cfg.Limits, OnRefusal: c.auditStream, Logger: c.log})
	if err != nil {
		return err
	}
	if c.loads, err = c.newLoads(groups); err != nil {
		return err
	}
	c.publisher, err = publish.New(publish.Config{
		Cache: c.cache, Ledger: c.ledger, Groups: groups, Counts: c.isProxy, Watch: c.cfg.Watch,
		Monitor: c.loads, RequestCounter: c.loads, OnRefusal: c.reportRefusal, Logger: c.log,
	})
	if err != nil {
		return err
	}
	c.submitter = &submitter{settings: settings, publisher: c.publisher, edge: c.cfg.EdgeCertificate}
	c.fleet, err = fleet.New(fleet.Config{
		Rules: c.cfg.Rules, Replicas: replicas, Store: c.cfg.Store, Counters: c.cfg.Store.Counters(c.cfg.Name),
		OnSlots: c.slots.setStored, OnPlan: c.auditPlan, Publisher: c.submitter, Proxies: c.loads.book, Logger: c.log,
	})
	if err != nil {
		return err
	}
	c.names.apply, c.refusals = c.fleet.SetReplicas, newRefusals(c.fleet.Order, c.log)
	mux := http.NewServeMux()
	c.handleOrders(mux)
	c.console, err = console.New(console.Config{Source: consoleSource{c}, Token: c.cfg.ConsoleToken, Orders: mux, Logger: c.log})
	return err
}

// initLength creates the length service and returns the address that proxies
// call.
func (c *Control) initLength() (string, error) {
	models := make([]length.Model, 0, len(c.cfg.Models))
	for _, m := range c.cfg.Models {
		models = append(models, length.Model{Name: m.Name, Hosts: m.Hosts})
	}
	var err error
	c.length, err = length.New(length.Config{
		Models: models, MaxBody: int(c.cfg.Settings.BodyLimit), BytesPerToken: c.BytesPerToken,
		BaseOf: func(name string) string { return c.adapters.modelOf(c.fleet.Snapshot(), name) }, Health: c.health, Metrics: c.registry, Logger: c.log,
	})
	if err != nil {
		return "", err
	}
	if c.cfg.TLS == nil {
		return c.listener.Addr().String(), nil
	}
	if c.lengthListener, err = net.Listen("tcp", c.cfg.Length); err != nil {
		return "", fmt.Errorf("length: %w", err)
	}
	return c.lengthListener.Addr().String(), nil
}

// Close releases the sockets of a Control that is not run.
func (c *Control) Close() {
	for _, l := range [...]net.Listener{c.listener, c.admin, c.lengthListener, c.cfg.Local} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Addr returns the address of the gRPC server.
func (c *Control) Addr() net.Addr { return c.listener.Addr() }

// AdminAddr returns the address of the admin server.
func (c *Control) AdminAddr() net.Addr { return c.admin.Addr() }

// SetReplicas replaces the configured replicas; see fleet.Fleet. A list with a name that is not found takes effect when
// it is.
func (c *Control) SetReplicas(list []policies.Replica) error { return c.names.set(list) }

// SetEdgeCertificate replaces Config.EdgeCertificate; open connections keep the
// one that they began with. It returns an error if there was none, because a
// listener cannot change between TLS and plain text.
func (c *Control) SetEdgeCertificate(cert *resources.Certificate) error {
	if c.cfg.EdgeCertificate == nil || cert == nil {
		return errors.New("control: edge certificate: TLS at the edge cannot be switched on or off while the control plane runs; restart it")
	}
	c.submitter.setEdgeCertificate(cert)
	return nil
}

// isProxy reports whether a node is known to be a proxy of the fleet: by its
// certificate, or, where there are none, by the list.
func (c *Control) isProxy(node string) bool {
	return c.auth != nil || resources.MatchGroup(c.cfg.Proxies, node)
}

// maySeeSecrets reports whether a node, whose certificate proves its id, may
// have the key of the edge. It logs each node that may not.
func (c *Control) maySeeSecrets(node string) bool {
	if c.auth != nil && resources.MatchGroup(c.cfg.Proxies, node) {
		return true
	}
	c.secretsRefused.Add(1)
	c.cfg.Audit.Record(auditlog.Record{Action: auditlog.Client, Object: "secret", Outcome: auditlog.Refused, Reason: "the node is not a listed proxy", Who: node})
	c.log.Warn("secret refused: the node is not a listed proxy; if it is one, add it to proxy.nodes", "node", node)
	return false
}

// BytesPerToken returns the ratio that routes and estimators use for a model; 0
// for an unknown one.
func (c *Control) BytesPerToken(model string) policylength.Ratio { return c.fleet.BytesPerToken(model) }

// Ready reports whether the first plan was published.
func (c *Control) Ready() bool { return c.cache.served.Load() }

// setServing makes the health checks report that proxies get responses.
func (c *Control) setServing() {
	c.health.SetServingStatus("", healthv1.HealthCheckResponse_SERVING)
	c.health.SetServingStatus(api.Fleet_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
}

// runCollections removes what is no longer used from the store, until ctx ends.
func (c *Control) runCollections(ctx context.Context) error {
	tick := time.NewTicker(store.CollectInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			c.collect(ctx, now)
		}
	}
}

// collect makes one collection. That it fails is a fault: the store grows.
func (c *Control) collect(ctx context.Context, now time.Time) {
	if err := c.cfg.Store.Collect(ctx, now); ctx.Err() == nil {
		c.fleet.NoteStore(fleet.StoreGarbage, err)
	}
}

// Run serves until ctx ends, then ends the streams, closes the sockets and
// returns nil. An error means that it could not start or that a socket failed.
func (c *Control) Run(ctx context.Context) error {
	defer c.Close()
	defer c.runAudit(ctx)()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.publisher.Run(ctx) })
	g.Go(func() error { return c.fleet.Run(ctx) })
	g.Go(func() error { return c.names.run(ctx) })
	g.Go(func() error { return c.slots.run(ctx) })
	g.Go(func() error { return c.runPlanes(ctx) })
	g.Go(func() error { return c.runCollections(ctx) })
	g.Go(func() error { return c.refusals.run(ctx) })
	g.Go(func() error { return c.console.Run(ctx) })
	c.serveGRPC(ctx, g)
	c.serveAdmin(ctx, g)
	c.log.Info("control plane listening", "grpc", c.Addr().String(), "admin", c.AdminAddr().String())
	return g.Wait()
}
