package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/cmd/wire"
	"github.com/cascadeinfer/cascade/migrator/stream"
	"github.com/cascadeinfer/cascade/migrator/uplink"
)

// migratorFlags are the flags of "cascade migrator".
type migratorFlags struct {
	file    fleetFile
	replica string
	control string
	drain   time.Duration
}

// newMigrator is "cascade migrator": the daemon beside an engine.
func newMigrator(s *settings) *cobra.Command {
	m := &migratorFlags{}
	c := &cobra.Command{
		Use:   "migrator -c FILE --replica ID",
		Short: "Run the migrator of one replica: the front of its streams",
		Long: `Migrator runs beside one engine and is what Envoy connects to in its place. It owns
every client's stream, counts tokens exactly, and reports load and flow to the
control plane. While its engine does not answer /health, it refuses connections, so
that the next replica takes over without anybody's help.

On SIGTERM it drains: it takes no new request, and ends when the last stream has
ended, or after --drain. A second signal ends it at once, and cuts its streams.

With "admin" set for the replica in the fleet file, /metrics, /healthz and /readyz
are served there.`,
		Example: `  cascade migrator -c fleet.yaml --replica r0
  cascade migrator -c fleet.yaml --replica r0 --control 10.0.0.5:18000 --drain 2m`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := m.file.load(cmd)
			if err != nil {
				return err
			}
			r, err := fleet.Replica(m.replica)
			if err != nil {
				return misused(cmd, "--replica: %w", err)
			}
			return s.runMigrator(cmd.Context(), fleet, r, m)
		},
	}
	m.file.flag(c, "fleet file")
	m.file.replicaFlag(c, &m.replica)
	f := c.Flags()
	f.StringVar(&m.control, "control", "", "host:port of the control plane, where it is not control.listen of the file")
	f.DurationVar(&m.drain, "drain", 10*time.Minute, "how long streams may go on after SIGTERM; what is left is cut")
	return c
}

func (s *settings) runMigrator(ctx context.Context, fleet wire.Fleet, r config.Replica, m *migratorFlags) error {
	log, err := s.logger()
	if err != nil {
		return err
	}
	id, err := newIdentity(fleet.TLS(), tlsRefresh)
	if err != nil {
		return err
	}
	defer id.close()
	target := m.control
	if target == "" {
		target = fleet.Fleet.Control.Listen
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(id.credentials(target)), uplink.ConnectParams())
	if err != nil {
		return fmt.Errorf("control plane %s: %w", target, err)
	}
	defer conn.Close()

	sc := fleet.Front(r, log)
	sc.DrainTimeout = m.drain
	sc.Peers, sc.PeerScheme = id.peers()
	doors, err := openDoors(r)
	if err != nil {
		return fmt.Errorf("migrator of %s: %w", r.ID, err)
	}
	sc.Listener, sc.PeerListener = doors.clients, id.listener(doors.peers)
	front, err := stream.New(sc)
	if err != nil {
		doors.close()
		return err
	}
	up, err := uplink.New(uplink.Config{
		Conn: conn, Replica: sc.Replica, Model: r.Model, Source: front.Status, Changed: front.Changed(), Logger: log,
	})
	if err != nil {
		doors.close()
		return err
	}
	metrics := newRegistry()
	metrics.MustRegister(newFrontCollector(front.Status, r.ID, r.Model))

	fmt.Fprintf(s.stderr, "migrator of %s: %s on http://%s, reports to %s\n", r.ID, r.Engine, doors.clients.Addr(), target)
	// The front ends by draining, and everything else when the front has ended.
	back, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, front.Drain)()
	g, back := errgroup.WithContext(back)
	g.Go(func() error {
		defer stop()
		return front.Run(back)
	})
	g.Go(func() error { return up.Run(back) })
	g.Go(func() error {
		return serveAdmin(back, doors.admin, metrics, func() string { return frontReady(front.Status()) })
	})
	return g.Wait()
}

// frontReady says why a front takes no requests; "" when it does.
func frontReady(s stream.Status) string {
	switch {
	case s.Draining:
		return "draining"
	case !s.EngineReady:
		return "the engine does not answer /health"
	}
	return ""
}

// doors are the open sockets of one replica's migrator.
type doors struct {
	clients, peers net.Listener
	admin          net.Listener // nil: none
}

func openDoors(r config.Replica) (d doors, err error) {
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	if d.clients, err = net.Listen("tcp", r.Address); err != nil {
		return d, err
	}
	if d.peers, err = net.Listen("tcp", r.Peer); err != nil {
		return d, fmt.Errorf("peers: %w", err)
	}
	d.admin, err = listenAdmin(r.Admin)
	return d, err
}

func (d doors) close() {
	for _, l := range [...]net.Listener{d.clients, d.peers, d.admin} {
		if l != nil {
			l.Close()
		}
	}
}
