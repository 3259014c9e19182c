package migratord

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/migrator/peer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport/shm"
	"github.com/cascadeinfer/cascade/migrator/transport/tcp"
	"github.com/cascadeinfer/cascade/migrator/transport/verbs"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// Daemon is the migrator of one replica. Its methods are safe for concurrent use; Run may be
// called once. If the fleet does not migrate requests, a Daemon runs only the front end and the
// load reporter.
type Daemon struct {
	cfg   Config
	id    policies.ReplicaID
	model string

	frontend  *frontend.Server
	latencies *latencies
	kvEvents  *kvevents.Subscriber // nil if the engine publishes none
	peers     *wiring.Peers        // nil if the migrators of the fleet listen by TCP
	reporter  *loadreport.Reporter
	// The fields from network to plans are nil if the fleet does not migrate requests.
	network     *peer.Network
	market      *market.Market
	executor    *move.Executor
	kv          *kvport.Client // nil if the engine has no kv.sock, or nothing is migrated live
	prefixes    *kvport.Copier // nil if the engine shows no block table
	transports  []transport.Transport
	paths       *transport.Paths // over transports
	rdma        *verbs.Transport // an element of transports, or nil
	plans       *routing.Client
	host        *policyhost.Host // nil if no module may decide
	controlView controlView
	linkCache   linkCache
	liveness    liveness
	rescues     recordLog
	pulled      recordLog
	startedAt   time.Time // before the front end was created
	predecessor predecessor
	leading     chan struct{} // closed by Lead
}

// New builds the components and does not start them. The caller owns the listeners until it calls
// Run or Serve.
func New(cfg Config) (*Daemon, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	d := &Daemon{cfg: cfg, id: policies.ReplicaID(cfg.Replica.ID), model: cfg.Replica.Model, startedAt: time.Now(), leading: make(chan struct{}), latencies: newLatencies(cfg.Replica.ID, cfg.Replica.Model)}
	d.predecessor.expected = cfg.Predecessor != 0
	d.peers, err = cfg.Fleet.Peers()
	if err == nil && cfg.Fleet.Places() {
		err = d.newMigration()
	}
	if err == nil {
		err = d.newFrontend()
	}
	if err == nil {
		err = d.newReporter()
	}
	if err != nil {
		return nil, fmt.Errorf("migrator of %s: %w", d.id, err)
	}
	return d, nil
}

// newFrontend builds the front end.
func (d *Daemon) newFrontend() error {
	c := d.cfg.Fleet.Frontend(d.cfg.Replica, d.cfg.Logger)
	c.Listener, c.PeerListener, c.Listen, c.DrainTimeout = d.cfg.Clients, d.cfg.Peers, d.cfg.Listen, d.cfg.Drain
	if own := d.cfg.TLS; own != nil && d.cfg.Fleet.Fleet.TLS.ServesRequests() {
		reopen := c.Listen
		c.Listener, c.Listen = own.WrapListener(c.Listener), func(network, address string) (net.Listener, error) {
			l, err := reopen(network, address)
			if err != nil {
				return nil, err
			}
			return own.WrapListener(l), nil
		}
	}
	c.Peers, c.PeerScheme = d.cfg.TLS.PeerTransport(d.owner)
	if d.peers != nil {
		c.PeerListener = d.peers.Admit(c.PeerListener, d.cfg.Logger)
		c.DialPeer = func(ctx context.Context, _, address string) (net.Conn, error) { return d.peers.Dial(ctx, address) }
	}
	c.TrustDomain = d.cfg.Fleet.Fleet.TLS.TrustDomain
	if k := d.Connector(); k != nil {
		c.KVConnector = k.KVConnector
	}
	if d.market != nil {
		c.Placer, c.Rescuer, c.Adopter, c.PeerRPC = d.market, d.market, d.executor, d.peerRPC()
		c.LegObserver = d.market
		c.PrefixPull = d.prefixPull()
		if c.OnPrefill = d.market.RecordPrefill; c.Handoff {
			c.FetchPrefill = func() bool { return !d.Live() }
		}
		c.OnRescue = func(r frontend.Rescue) {
			d.rescues.add(encodeRescue(r, string(d.id)))
			d.executor.RecordRescue(r)
		}
	}
	c.Admit, c.Tracer, c.OnServed = d.cfg.Room.Admit, d.cfg.Tracer, d.latencies.served
	if d.cfg.EditFrontend != nil {
		d.cfg.EditFrontend(&c)
	}
	var err error
	if d.frontend, err = frontend.New(c); err != nil {
		return err
	}
	return d.newKVEvents(c.Model)
}

// newKVEvents builds the subscription to the engine's KV events, by which the front end knows which prompts
// the engine holds.
func (d *Daemon) newKVEvents(model string) (err error) {
	e := d.cfg.Replica.KVEvents
	if !e.Enabled() {
		return nil
	}
	held := d.frontend.HeldPrefixes()
	c := kvevents.Config{Replay: e.ReplayAddress(), Topic: e.Topic, Model: model, Index: held, SetLive: held.SetLive, Log: d.cfg.Logger}
	if e.Listens() {
		c.Dial = e.Address()
	} else {
		c.Listen = e.Address()
	}
	d.kvEvents, err = kvevents.New(c)
	return err
}

// KVEvents returns what the subscriber of the engine's KV events does; false if there is none.
func (d *Daemon) KVEvents() (kvevents.Status, bool) {
	if d.kvEvents == nil {
		return kvevents.Status{}, false
	}
	return d.kvEvents.Status(), true
}

// newMigration builds the components that migrate requests. They reference each other through d,
// which is complete before any of them runs.
func (d *Daemon) newMigration() error {
	log, f, r := d.cfg.Logger, &d.cfg.Fleet, d.cfg.Replica
	var err error
	pc := peer.Config{
		Self: d.id, Handle: d.receive, PeerGone: d.peerGone, PeerBack: d.peerBack, Alive: d.liveness.isAlive,
		Credentials: d.credentials, TrustDomain: f.Fleet.TLS.TrustDomain, Topology: d.topology, ServeFetch: d.serveFetch(), ServePrefix: d.servePrefix, Logger: log,
	}
	if d.peers != nil {
		pc.Dial = d.peers.Dial
	}
	if d.network, err = peer.New(pc); err != nil {
		return err
	}
	mc := f.Executor(r, log)
	if err = d.newKVPort(); err != nil {
		return err
	}
	if d.showsTable() {
		d.paceTransports()
		mc.Engine = d.kv
	}
	mc.FrontEnd, mc.Send, mc.Notify = func() move.FrontEnd { return d.frontend }, d.network.Send, func(ev bidask.Event) { d.market.Notify(ev) }
	d.paths = transport.NewPaths(transport.PathsConfig{Self: d.id, Transports: d.transports, Pool: d.pool(), Host: d.controlView.host, Paths: d.linksFrom, Logger: log})
	mc.Address, mc.Paths, mc.Tracer, mc.OnStall = d.controlView.address, d.paths, d.cfg.Tracer, d.latencies.stalled
	if d.executor, err = move.New(mc); err != nil {
		return err
	}
	if d.showsTable() {
		if err = d.newPrefixCopier(); err != nil {
			return err
		}
	}
	kc := f.Market(r)
	if err = d.newHost(kc); err != nil {
		return err
	}
	if d.host != nil {
		d.host.ConfigureMarket(&kc, r.Host)
	}
	if f.UsesDistance() {
		d.linkCache.tokenBytes, kc.MigrationCost = f.TokenBytes(r), d.distances
	}
	kc.Executor, kc.Network = d.executor, d.network
	kc.Residents = func() []frontend.LocalLeg { return d.frontend.LocalLegs() }
	kc.Prefixes = func(known uint64) ([]byte, uint64) { return d.frontend.PrefixSummary(known) }
	kc.Load = func() policies.Load { return d.Status().Load }
	kc.Machine.FirstDeal = uint64(d.startedAt.UnixMicro()) // deal numbers identify the process that made the deal
	kc.Ready = func() bool { return d.frontend.Status().EngineReady }
	kc.CanReceive = func() bool { return d.deviceDown() == nil && d.cfg.Room.Err() == nil }
	if d.cfg.EditMarket != nil {
		d.cfg.EditMarket(&kc)
	}
	if d.market, err = market.New(kc); err != nil {
		return err
	}
	var others []routing.Server
	for _, conn := range d.cfg.OtherControl {
		others = append(others, routing.Server{Conn: conn})
	}
	cc := routing.Config{Conn: d.cfg.Control, OtherServers: others, NodeID: identity.MigratorNodeID(r.ID), Cluster: resources.ObserverCluster, Logger: log}
	w := snapshotWatcher{d: d}
	if d.host != nil && d.cfg.Host == nil {
		w.slots = d.host.Follower()
		cc.Slots, cc.CheckSlot = policyhost.Resources(wiring.MigratorKinds), d.host.CheckResource
	}
	cc.Watcher = w
	d.plans, err = routing.New(cc)
	return err
}

// newHost sets d.host, whose policy slots replace the market's policies: Config.Host if it is set,
// else a new host if the fleet enables modules, else nil.
func (d *Daemon) newHost(m market.Config) error {
	f := &d.cfg.Fleet
	if d.host = d.cfg.Host; d.host != nil || !f.ModulesEnabled() {
		return nil
	}
	var err error
	d.host, err = policyhost.NewHost(policyhost.HostConfig{
		Fleet: f, Role: identity.Migrator, Name: string(d.id), Kinds: wiring.MigratorKinds, Native: f.NativePolicies(m),
		Fetch: policyhost.FetchFrom(append([]grpc.ClientConnInterface{d.cfg.Control}, d.cfg.OtherControl...)), Logger: d.cfg.Logger,
	})
	if err == nil && d.host.MarksWarning() != "" {
		d.cfg.Logger.Warn("admitted modules will be forgotten at the end of the process", "reason", d.host.MarksWarning())
	}
	return err
}

// newTransports builds the transports of KV blocks, best first, as topology.Kind orders links. Each
// transport checks itself whether it can reach the engine's pool.
func (d *Daemon) newTransports(pool transport.Pool) error {
	if d.cfg.Runtime != "" && d.cfg.GPUs != nil {
		t, err := cuda.New(cuda.Config{Dir: d.cfg.Runtime, Pool: pool, Logger: d.cfg.Logger})
		if err != nil {
			return err
		}
		d.transports = append(d.transports, t)
	}
	if d.cfg.Runtime != "" {
		t, err := shm.New(shm.Config{Dir: d.cfg.Runtime, Pool: pool, Logger: d.cfg.Logger})
		if err != nil {
			return err
		}
		d.transports = append(d.transports, t)
	}
	if d.cfg.RDMA != nil && d.cfg.Fleet.UsesRDMA() {
		if err := d.newRDMA(pool); err != nil {
			return err
		}
	}
	host, _, err := net.SplitHostPort(d.cfg.Replica.Peer)
	if err != nil {
		return err
	}
	tc := tcp.Config{Listen: net.JoinHostPort(host, "0"), Pool: pool, Logger: d.cfg.Logger}
	if d.cfg.TLS != nil {
		tc.TLS, tc.TrustDomain = d.cfg.TLS.ServerConfig(), d.cfg.Fleet.Fleet.TLS.TrustDomain
		tc.ClientTLS = func(source policies.ReplicaID, address string) *tls.Config {
			return d.cfg.TLS.MigratorClientConfig(string(source), address)
		}
	}
	t, err := tcp.New(tc)
	if err != nil {
		return err
	}
	d.transports = append(d.transports, t)
	return nil
}

// paceTransports lets an emulated link carry the blocks, whose size is that of the engine's description.
func (d *Daemon) paceTransports() {
	link := transport.NewEmulatedLink(max(1, d.cfg.Fleet.LinkRate()), func() int64 {
		s, _ := d.kv.Description()
		return int64(s.BlockTokens) * int64(s.TokenBytes)
	})
	for i, t := range d.transports {
		d.transports[i] = link.Carry(t)
	}
}

// credentials returns the credentials of a connection to a peer.
func (d *Daemon) credentials(peer policies.ReplicaID, address string) credentials.TransportCredentials {
	return d.cfg.TLS.MigratorCredentials(string(peer), address)
}

// owner returns the replica with the given peer address, as the control plane reports it, or "" if
// there is none.
func (d *Daemon) owner(address string) string { return string(d.controlView.owner(address)) }

// Frontend returns the replica's front end.
func (d *Daemon) Frontend() *frontend.Server { return d.frontend }

// Market returns the replica's market, or nil if requests do not migrate.
func (d *Daemon) Market() *market.Market { return d.market }

// Executor returns the migration executor, or nil if requests do not migrate.
func (d *Daemon) Executor() *move.Executor { return d.executor }

// Live reports whether this replica's engine supports live migration, which means that it serves
// its block table now.
func (d *Daemon) Live() bool {
	if !d.showsTable() {
		return false
	}
	_, shown := d.kv.Description()
	return shown
}

// memory returns the memory that the transports serve now, if any: the engine's cache or its staging memory.
func (d *Daemon) memory() (*transport.Memory, bool) {
	if d.kv == nil {
		return nil, false
	}
	return d.kv.Memory()
}

// Hosts returns the policy slots that decide for this replica: one set, or none if no module may
// decide.
func (d *Daemon) Hosts() []*policyhost.Host {
	if d.host == nil {
		return nil
	}
	return []*policyhost.Host{d.host}
}

// Drain ends the replica's part in the fleet: it makes the front end reject new requests, and offers
// those that its engine generates for to other replicas, those of clients of this front end included,
// which go on reading here. Run returns when the last stream has ended, or after Config.Drain.
func (d *Daemon) Drain() {
	d.controlView.mu.Lock()
	d.controlView.drained = true
	d.controlView.mu.Unlock()
	d.updateView(func(*market.View) {})
	d.frontend.Drain()
}

// Retire is like Drain, for a daemon whose address another process now serves: the front end
// rejects no request, but asks clients to open a new connection.
func (d *Daemon) Retire() { d.frontend.Retire() }

// Run runs Serve and Lead together, for a process without a successor.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop()
		return d.Serve(ctx)
	})
	g.Go(func() error { return d.Lead(ctx) })
	return g.Wait()
}

// Serve runs the components that the streams of this process need. It returns when the front end is
// drained, or when ctx ends, which cuts the running streams. It may be called once.
func (d *Daemon) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer stop() // all other components run as long as the front end does
		return d.frontend.Run(ctx)
	})
	if d.market != nil {
		for _, run := range []func(context.Context) error{d.network.Run, d.executor.Run, d.plans.Run, d.watchPeers, d.runMarket} {
			g.Go(func() error { return run(ctx) })
		}
		g.Go(func() error { return d.paths.Run(ctx) })
		for _, t := range d.transports {
			g.Go(func() error { return t.Run(ctx) })
		}
	}
	if d.kv != nil {
		g.Go(func() error { return d.kv.Run(ctx) })
	}
	if d.showsTable() {
		g.Go(func() error { return d.watchDevice(ctx) })
		g.Go(func() error { return d.prefixes.Run(ctx) })
	}
	if d.host != nil && d.cfg.Host == nil {
		g.Go(func() error { return d.host.Run(ctx) })
	}
	return g.Wait()
}

// Lead reports to the control plane for the replica, and buys requests, until ctx ends. Only one
// process of a replica leads at a time. After Lead returns, this process still sells its requests
// until Serve returns. Lead may be called once.
func (d *Daemon) Lead(ctx context.Context) error {
	close(d.leading)
	defer d.updateView(func(v *market.View) { v.Retired, v.Refine = true, nil })
	if d.kvEvents == nil {
		return d.reporter.Run(ctx)
	}
	// One process of a replica listens to its engine.
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.reporter.Run(ctx) })
	g.Go(func() error { return d.kvEvents.Run(ctx) })
	return g.Wait()
}

// runMarket runs the market once this process leads.
func (d *Daemon) runMarket(ctx context.Context) error {
	select {
	case <-d.leading:
		return d.market.Run(ctx)
	case <-ctx.Done():
		return nil
	}
}

// receive passes an envelope to its component, or forwards it to the preceding process if that
// process runs and the envelope concerns what an earlier process began.
func (d *Daemon) receive(from policies.ReplicaID, e *api.Envelope) {
	if d.isForPredecessor(e) && d.predecessor.forward(e) {
		return
	}
	switch b := e.Body.(type) {
	case *api.Envelope_Market:
		d.market.Receive(from, b.Market)
	case *api.Envelope_Transfer:
		d.executor.Receive(from, b.Transfer)
	case *api.Envelope_Summary:
		d.market.ReceiveSummary(from, b.Summary)
	case *api.Envelope_Arrivals:
		d.market.ReceiveArrivals(from, b.Arrivals)
	}
}

// peerGone reports to every component that a peer has failed.
func (d *Daemon) peerGone(id policies.ReplicaID) {
	d.executor.PeerGone(id)
	d.market.PeerGone(id)
	d.frontend.HandlePeerLoss(id)
}

// peerBack reports to the market that a peer is reachable again, before its
// first message.
func (d *Daemon) peerBack(id policies.ReplicaID) { d.market.PeerBack(id) }
