package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/hostdevices"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// migratorFlags are the flags of "cascade migrator".
type migratorFlags struct {
	file    fleetFile
	replica string
	control string
	runtime string
	metrics string
	drain   time.Duration
}

// newMigrator is "cascade migrator": the daemon beside an engine.
func newMigrator(s *settings) *cobra.Command {
	m := &migratorFlags{}
	c := &cobra.Command{
		Use:   "migrator -c FILE --replica ID",
		Short: "Run the migrator of one replica, the front end of its streams",
		Long: `Migrator runs beside one engine and is what Envoy connects to in its place. It owns
every client's stream, counts tokens exactly, and reports load and flow to the
control plane. While its engine does not answer /health, or makes no progress, it
refuses connections, so that proxies use the next replica without the control plane.

On SIGTERM it drains: it accepts no new request, offers those that the engine runs to
other replicas, whose clients read on through the migrator, and ends when the last stream
has ended, or after --drain. A second signal ends it at once, and cuts its streams.

POST /drain at its admin address, with the header X-Cascade-Admin: 1, does the same, for
preStop hooks of the engine. It answers 202 while the engine runs some requests, and 200
once it may be stopped.

To upgrade, start the new one beside the old, as the same user, with the same
--runtime-dir: it takes over the listening sockets, so that no connection is refused, and
the old one ends with its last stream, or up to five minutes later while clients keep
HTTP/1 connections open. Until then the old one's streams count as the replica's load, and
migrate like others: "cascade drain" empties both. A second process of a replica
therefore replaces the first.

Where the engine's KV is in the memory of a GPU, the GPU is watched by NVML, if that is
there. One that reports a critical error (Xid) of its own, uncorrected memory errors, or
nothing any more, and one that fails each time it is used, receives no more KV: the
replica buys no requests, its own migrate by re-prompting from then on, and "cascade
status" shows the reason. New requests still begin there, while the engine accepts them.

With "admin" set for the replica in the fleet file, /metrics, /healthz and /readyz
are served there and, to this host, the calls for "cascade policy status --records". With
OTEL_EXPORTER_OTLP_ENDPOINT set, every request is a span, in the trace that its
proxy or client began (W3C traceparent), and its migrations belong to that trace. Spans
are exported by OTLP over gRPC; the other OpenTelemetry variables apply, too.`,
		Example: `  cascade migrator -c fleet.yaml --replica r0
  cascade migrator -c fleet.yaml --replica r0 --control 10.0.0.5:18000 --drain 2m
  cascade migrator -c fleet.yaml --replica r0    # again, from the new binary: upgrades`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := m.file.load(cmd)
			if err != nil {
				return err
			}
			r, err := fleet.Replica(m.replica)
			if err != nil {
				return cli.Usagef(cmd, "--replica: %w", err)
			}
			return s.runMigrator(cmd.Context(), fleet, r, m)
		},
	}
	m.file.flag(c, "fleet file")
	m.file.replicaFlag(c, &m.replica)
	f := c.Flags()
	f.StringVar(&m.control, "control", "", daemon.ControlUsage)
	daemon.RuntimeDirFlag(c, &m.runtime)
	c.Flags().StringVar(&m.metrics, adminserver.MetricsFlag, "", adminserver.MetricsUsage)
	f.DurationVar(&m.drain, "drain", 10*time.Minute, "how long streams may go on after SIGTERM; what is left is cut")
	return c
}

func (s *settings) runMigrator(ctx context.Context, fleet wiring.Fleet, r config.Replica, m *migratorFlags) error {
	log, err := s.Logger()
	if err != nil {
		return err
	}
	own, err := daemon.New(ctx, daemon.Config{Log: log, Fleet: fleet, Role: identity.Migrator, Name: r.ID, Replica: r.ID})
	if err != nil {
		return err
	}
	defer own.Close()
	planes, err := own.ControlPlanes(m.control)
	if err != nil {
		return err
	}
	links, hangUp, err := planes.Dial()
	if err != nil {
		return err
	}
	defer hangUp()
	s.Announce(slog.LevelInfo, "%s", hostdevices.Describe(inventory.Config{Name: r.Host, CUDA: cudaLibrary(), NVML: nvmlLibrary()}, log))
	if m.runtime, err = filepath.Abs(m.runtime); err != nil { // peers get the paths of sockets in it
		return err
	}
	scraped, err := adminserver.ListenMetrics(m.metrics, log)
	if err != nil {
		return err
	}
	next, err := own.BeginUpgrade(ctx, m.runtime, r.ID, r.Address)
	if err != nil {
		return fmt.Errorf("migrator of %s: %w", r.ID, err)
	}
	defer next.Abandon()
	listeners, err := openReplicaListeners(next, &fleet, r)
	if err != nil {
		return fmt.Errorf("migrator of %s: %w", r.ID, err)
	}

	all := newGPUs(log)
	seen := hostdevices.New(hostdevices.Config{Host: inventory.Config{Name: r.Host, CUDA: cudaLibrary(), NVML: nvmlLibrary()}, Logger: log})
	reopen := next.Reopen(clientsListener)
	d, err := migratord.New(migratord.Config{
		Fleet: fleet, Replica: r, Control: links[0], OtherControl: links[1:], Clients: own.Room.Listener(listeners.clients), Peers: own.Certs.WrapListener(listeners.peers),
		Listen: func(network, address string) (net.Listener, error) {
			l, err := reopen(network, address)
			return own.Room.Listener(l), err
		},
		Problems: own.Problems,
		Room:     own.Room, TLS: own.Certs, Runtime: m.runtime, GPUs: all, RDMA: hostdevices.RDMA(log), Machine: seen.Machine, Drain: m.drain, Predecessor: next.Predecessor(), Tracer: own.Tracer("migrator"), Logger: log,
	})
	if err != nil {
		listeners.close()
		return err
	}
	front := d.Frontend()
	d.RegisterMetrics(own.Metrics)

	scheme := "http"
	if fleet.Fleet.TLS.ServesRequests() {
		scheme = "https"
	}
	s.Announce(slog.LevelInfo, "migrator of %s: %s on %s://%s, reports to %s", r.ID, r.Engine, scheme, listeners.clients.Addr(), planes)
	if p := next.Predecessor(); p != 0 {
		s.Announce(slog.LevelInfo, "migrator of %s: taking over from process %d", r.ID, p)
	}
	// The front end ends by draining, and everything else stops after it.
	back, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, d.Drain)()
	g, back := errgroup.WithContext(back)
	g.Go(func() error {
		defer stop()
		return d.Serve(back)
	})
	g.Go(func() error { return takeOver(back, next, d) })
	g.Go(func() error { return all.Run(back) })
	g.Go(func() error { return seen.Run(back) })
	ready := func() string { return frontendReadiness(front.Status(), own.Room.Err()) }
	g.Go(func() error { return own.ServeMetrics(back, scraped, ready) })
	g.Go(func() error {
		mux := adminserver.Handler(own.Metrics, ready)
		mux.Handle("GET /plan", planHandler(d.Plans))
		mux.Handle("POST /drain", adminserver.OnlyLocal(control.RestrictHosts(nil, localOrders(fleet.Fleet.Control.AdminUsers, drainHandler(d.Drain, func() policies.Load { return front.Status().Load })))))
		mux.Handle("GET /policies/records", adminserver.OnlyLocal(control.RestrictHosts(nil, policyhost.Records(d.Hosts()...))))
		return own.Serve(back, listeners.admin, mux)
	})
	return errors.Join(g.Wait(), all.Close())
}

// frontendReadiness returns why a front end accepts no requests; "" if it does.
func frontendReadiness(s frontend.Status, room error) string {
	switch {
	case s.Draining:
		return "draining"
	case s.EngineHung:
		return "the engine answers /health and makes no progress: restart it"
	case !s.EngineReady:
		return "the engine does not answer /health"
	case room != nil:
		return room.Error()
	}
	return ""
}

// replicaListeners are the open listeners of a replica's migrator.
type replicaListeners struct {
	clients, peers net.Listener
	admin          net.Listener // nil if the replica has no admin address
}

// The names of a daemon's listeners in a handover.
const (
	clientsListener = "clients"
	peersListener   = "peers"
	adminListener   = "admin"
)

// openReplicaListeners opens the listeners of a replica, or takes over those of
// its predecessor.
func openReplicaListeners(next *daemon.Upgrade, f *wiring.Fleet, r config.Replica) (d replicaListeners, err error) {
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.clients, err = next.Listen(clientsListener, "address of replica "+r.ID, r.Address); err != nil {
		return d, err
	}
	if d.peers, err = next.Listen(peersListener, "peer of replica "+r.ID, f.PeerSocket(r.Peer)); err != nil {
		return d, err
	}
	if r.Admin != "" {
		d.admin, err = next.Listen(adminListener, "admin of replica "+r.ID, r.Admin)
	}
	return d, err
}

func (d replicaListeners) close() {
	for _, l := range [...]net.Listener{d.clients, d.peers, d.admin} {
		if l != nil {
			l.Close()
		}
	}
}

const (
	// engineTimeout is how long a new process waits for its engine before it stops its predecessor
	// even without one.
	engineTimeout = 5 * time.Second
	// enginePollPeriod is the time between two checks of the engine.
	enginePollPeriod = 20 * time.Millisecond
)

// takeOver stops the predecessor as soon as the daemon is ready, then leads until it hands over to a
// successor and retires. It returns when ctx ends, or when it no longer leads and the links to the
// other processes have ended.
func takeOver(ctx context.Context, next *daemon.Upgrade, d *migratord.Daemon) error {
	if next.Predecessor() != 0 {
		waitForEngine(ctx, d)
	}
	before, err := next.Finish(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	var links sync.WaitGroup
	defer links.Wait()
	links.Go(func() {
		if before == nil { // as an interface, a nil *handover.Link would not be nil
			d.FollowPredecessor(ctx, nil)
			return
		}
		d.FollowPredecessor(ctx, before)
	})
	leading, stopLeading := context.WithCancel(ctx)
	defer stopLeading()
	led := make(chan error, 1)
	go func() {
		defer stopLeading()
		led <- d.Lead(leading)
	}()
	after := next.WaitForSuccessor(leading, func() {
		stopLeading()
		led <- <-led
	})
	if after != nil {
		links.Go(func() { d.ServeSuccessor(ctx, after) })
		d.Retire()
	}
	return <-led
}

// waitForEngine waits until the engine of a daemon is ready, for at most engineTimeout.
func waitForEngine(ctx context.Context, d *migratord.Daemon) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	tick := time.NewTicker(enginePollPeriod)
	defer tick.Stop()
	for !d.Frontend().Status().EngineReady {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
