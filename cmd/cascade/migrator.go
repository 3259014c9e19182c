package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/devicewatch"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/cmd/internal/policyhost"
	"github.com/cascadeinfer/cascade/cmd/internal/tracing"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
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

On SIGTERM it drains: it accepts no new request, and ends when the last stream has
ended, or after --drain. A second signal ends it at once, and cuts its streams.

POST /drain at its admin address, for preStop hooks of the engine, also offers the
requests that the engine runs to other replicas. It answers 202 while some are left, and
200 once the engine may be stopped; their clients read on through the migrator.

To upgrade, start the new one beside the old, as the same user, with the same
--runtime-dir: it takes over the listening sockets, so that no connection is refused, and
the old one ends with its last stream. Until then the old one's streams count as the
replica's load, and migrate like others: "cascade drain" empties both. A second process
of a replica therefore replaces the first.

Where the engine's KV is in the memory of a GPU, the GPU is watched by NVML, if that is
there. One that reports a critical error (Xid) of its own, uncorrected memory errors, or
nothing any more, and one that fails each time it is used, receives no more KV: the
replica buys no requests, its own migrate by re-prompting from then on, and "cascade
status" shows the reason. New requests still begin there, while the engine accepts them.

With "admin" set for the replica in the fleet file, /metrics, /healthz and /readyz
are served there and, to this host, the calls for "cascade policy records". With
OTEL_EXPORTER_OTLP_ENDPOINT set, every request is a span, in the trace that its
proxy or client began (W3C traceparent), and its migrations belong to that trace. Spans
are exported by OTLP over gRPC; the other OpenTelemetry variables apply, too.`,
		Example: `  cascade migrator -c fleet.yaml --replica r0
  cascade migrator -c fleet.yaml --replica r0 --control 10.0.0.5:18000 --drain 2m
  cascade migrator -c fleet.yaml --replica r0    # again, from the new binary: upgrades`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := m.file.load(cmd)
			if err != nil {
				return err
			}
			r, err := fleet.Replica(m.replica)
			if err != nil {
				return usageErrorf(cmd, "--replica: %w", err)
			}
			return s.runMigrator(cmd.Context(), fleet, r, m)
		},
	}
	m.file.flag(c, "fleet file")
	m.file.replicaFlag(c, &m.replica)
	f := c.Flags()
	f.StringVar(&m.control, "control", "", controlUsage)
	runtimeDirFlag(c, &m.runtime)
	c.Flags().StringVar(&m.metrics, adminserver.MetricsFlag, "", adminserver.MetricsUsage)
	f.DurationVar(&m.drain, "drain", 10*time.Minute, "how long streams may go on after SIGTERM; what is left is cut")
	return c
}

func (s *settings) runMigrator(ctx context.Context, fleet wiring.Fleet, r config.Replica, m *migratorFlags) error {
	fm, err := s.newControlConns(fleet, component{identity.Migrator, r.ID}, m.control)
	if err != nil {
		return err
	}
	defer fm.close()
	links, hangUp, err := fm.dial()
	if err != nil {
		return err
	}
	defer hangUp()
	spans, err := tracing.New(ctx, tracing.Config{Replica: r.ID, Version: version(), Logger: fm.log})
	if err != nil {
		return err
	}
	defer spans.Close()
	s.announce(slog.LevelInfo, "%s", describeHost(inventory.Config{Name: r.Host, CUDA: cudaLibrary(), NVML: nvmlLibrary()}, fm.log))
	if m.runtime, err = filepath.Abs(m.runtime); err != nil { // peers get the paths of sockets in it
		return err
	}
	scraped, err := adminserver.ListenMetrics(m.metrics, fm.log)
	if err != nil {
		return err
	}
	next, err := beginUpgrade(ctx, m.runtime, r.ID, r.Address)
	if err != nil {
		return fmt.Errorf("migrator of %s: %w", r.ID, err)
	}
	defer next.abandon()
	listeners, err := openReplicaListeners(next, r)
	if err != nil {
		return fmt.Errorf("migrator of %s: %w", r.ID, err)
	}

	all := newGPUs(fleet.Fleet.CUDA, fm.log)
	seen := devicewatch.New(devicewatch.Config{Host: inventory.Config{Name: r.Host, CUDA: cudaLibrary(), NVML: nvmlLibrary()}, Logger: fm.log})
	room := headroom.New(headroom.Read(), fm.log)
	reopen, times := next.reopen(clientsListener), newLatencies(r.ID, r.Model)
	d, err := migratord.New(migratord.Config{
		Fleet: fleet, Replica: r, Control: links[0], OtherControl: links[1:], Clients: room.Listener(listeners.clients), Peers: fm.certs.WrapListener(listeners.peers),
		Listen: func(network, address string) (net.Listener, error) {
			l, err := reopen(network, address)
			return room.Listener(l), err
		},
		Problems: problems(room, certs.Expiries{Own: fm.certs}),
		Room:     room, TLS: fm.certs, Runtime: m.runtime, GPUs: all, RDMA: rdma(fm.log), Machine: seen.Machine, Drain: m.drain, Predecessor: next.predecessor(), Tracer: spans.Tracer("migrator"), OnServed: times.served, OnStall: times.stalled, Logger: fm.log,
	})
	if err != nil {
		listeners.close()
		return err
	}
	front := d.Frontend()
	metrics := adminserver.NewRegistry()
	metrics.MustRegister(room, certs.Expiries{Own: fm.certs}, newFrontendCollector(d.Status, r.ID, r.Model))
	times.register(metrics)
	if d.Market() != nil {
		metrics.MustRegister(newMigrationCollector(func() migrationSample {
			return migrationSample{market: d.Market().Status(), executor: d.Executor().Stats(), maxConcurrent: fleet.Migration.MaxConcurrent}
		}, r.ID, r.Model))
	}
	metrics.MustRegister(newPrefixCollector(func() prefixSample { return prefixSample{front.PrefixPulls(), d.PrefixesServed(), front.Prefills()} }, r.ID, r.Model))
	if _, ok := d.KVEvents(); ok {
		metrics.MustRegister(newKVEventsCollector(func() kvEventsSample {
			events, _ := d.KVEvents()
			return kvEventsSample{events, front.PrefixStatus().Counts}
		}, r.ID, r.Model))
	}
	if c := d.Connector(); c != nil {
		metrics.MustRegister(newConnectorCollector(c.Stats, r.ID, r.Model))
	}

	s.announce(slog.LevelInfo, "migrator of %s: %s on http://%s, reports to %s", r.ID, r.Engine, listeners.clients.Addr(), strings.Join(fm.control, " and "))
	if p := next.predecessor(); p != 0 {
		s.announce(slog.LevelInfo, "migrator of %s: taking over from process %d", r.ID, p)
	}
	// The front end ends by draining, and everything else stops after it.
	back, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, front.Drain)()
	g, back := errgroup.WithContext(back)
	g.Go(func() error {
		defer stop()
		return d.Serve(back)
	})
	g.Go(func() error { return next.runMigrator(back, d, fm.log) })
	g.Go(func() error { return all.Run(back) })
	g.Go(func() error { return seen.Run(back) })
	ready := func() string { return frontendReadiness(front.Status(), room.Err()) }
	access := adminserver.NewAccess(fleet.Fleet, fm.certs)
	g.Go(func() error { return adminserver.Serve(back, scraped, adminserver.Handler(metrics, ready), access) })
	g.Go(func() error {
		mux := adminserver.Handler(metrics, ready)
		mux.Handle("GET /plan", planHandler(d.Plans))
		mux.Handle("POST /drain", adminserver.OnlyLocal(control.RestrictHosts(nil, localOrders(fleet.Fleet.Control.AdminUsers, leaveHandler(d.Leave, func() policies.Load { return front.Status().Load })))))
		mux.Handle("GET /policies/records", adminserver.OnlyLocal(control.RestrictHosts(nil, policyhost.Records(d.Hosts()...))))
		return adminserver.Serve(back, listeners.admin, mux, access)
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

// The names of a migrator's listeners in a handover.
const (
	clientsListener = "clients"
	peersListener   = "peers"
)

// openReplicaListeners opens the listeners of a replica, or takes over those of
// its predecessor.
func openReplicaListeners(next *upgrade, r config.Replica) (d replicaListeners, err error) {
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.clients, err = next.listen(clientsListener, r.Address); err != nil {
		return d, err
	}
	if d.peers, err = next.listen(peersListener, r.Peer); err != nil {
		return d, err
	}
	if r.Admin != "" {
		d.admin, err = next.listen(adminListener, r.Admin)
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
