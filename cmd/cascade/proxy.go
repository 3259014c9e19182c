package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/proxy"
)

// noticeAfter is how long a daemon waits for another component before it prints that it waits.
const noticeAfter = 2 * time.Second

// proxyFlags are the flags of "cascade proxy".
type proxyFlags struct {
	file                    fleetFile
	nodeID, control, listen string
	runtime                 string
	drain                   time.Duration
}

// newProxy is "cascade proxy": the embedded data plane.
func newProxy(s *settings) *cobra.Command {
	p := &proxyFlags{}
	c := &cobra.Command{
		Use:   "proxy -c FILE",
		Short: "Run the embedded proxy, in place of Envoy",
		Long: `Proxy is a small data plane that follows the plan of the control plane and picks replicas as
the endpoint picker does. It listens on proxy.listen of the fleet file, and goes on with its
last plan while the control plane is down.

On SIGTERM it stops accepting and ends when the last stream has ended, or after
--drain. A second signal ends it at once.

To upgrade, start the new one beside the old, as the same user, with the same --node-id,
--listen and --runtime-dir: once it has its configuration it takes over the listening
sockets, so that no connection is refused, and the old one ends 5 s after its last stream,
however long that takes. HTTP/1 connections without a request are left to their clients to
close, for ten minutes: closing one may lose the request that its client is sending.`,
		Example: `  cascade proxy -c fleet.yaml
  cascade proxy -c fleet.yaml --node-id edge-2 --listen 127.0.0.1:8090
  cascade proxy -c fleet.yaml    # again, from the new binary: upgrades
  curl 127.0.0.1:8080/v1/models`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := p.file.load(cmd)
			if err != nil {
				return err
			}
			return s.runProxy(cmd.Context(), fleet, p)
		},
	}
	p.file.flag(c, "fleet file")
	f := c.Flags()
	f.StringVar(&p.nodeID, "node-id", wiring.DefaultNodeID("proxy"), "name of this proxy; every node of a fleet needs one of its own")
	f.StringVar(&p.control, "control", "", daemon.ControlUsage)
	f.StringVar(&p.listen, "listen", "", "host:port to serve on instead of the published one")
	f.DurationVar(&p.drain, "drain", proxy.DefaultDrainTimeout, "how long streams may go on after SIGTERM; what is left is cut")
	daemon.RuntimeDirFlag(c, &p.runtime)
	f.Lookup("node-id").DefValue = "proxy@<host name>"
	return c
}

func (s *settings) runProxy(ctx context.Context, fleet wiring.Fleet, p *proxyFlags) error {
	log, err := s.Logger()
	if err != nil {
		return err
	}
	d, err := daemon.New(ctx, daemon.Config{Log: log, Fleet: fleet, Role: identity.Proxy, Name: p.nodeID, Edge: true})
	if err != nil {
		return err
	}
	defer d.Close()
	planes, err := d.ControlPlanes(p.control)
	if err != nil {
		return err
	}
	cfg := proxy.Config{
		Client: planes.Client(p.nodeID), DrainTimeout: p.drain, Admit: d.Room.Admit, WrapListener: d.Room.Listener, Registry: d.Metrics, Tracer: d.Tracer("proxy"),
		BodyMemory: fleet.Fleet.Proxy.BodyLimit.ProxyBytes(), BodyRate: config.BodyRate, Problems: d.Problems, Logger: log,
	}
	if d.Edge != nil {
		cfg.TLS = d.Edge.TLS()
	}
	if d.Certs != nil {
		cfg.ReplicaTLS = d.Certs.ReplicaClientConfig
	}
	next, err := d.BeginUpgrade(ctx, p.runtime, "proxy:"+p.nodeID, cmp.Or(p.listen, fleet.Proxy.Listen))
	if err != nil {
		return fmt.Errorf("proxy %s: %w", p.nodeID, err)
	}
	defer next.Abandon()
	if p.listen != "" {
		if cfg.Listener, err = next.Listen(clientsListener, "--listen", p.listen); err != nil {
			return err
		}
		defer cfg.Listener.Close()
	}
	cfg.Listen = func(_, address string) (net.Listener, error) { return next.Listen(address, "proxy.listen", address) }
	px, err := proxy.New(cfg)
	if err != nil {
		return err
	}
	var admin net.Listener
	if fleet.Proxy.Admin != "" {
		if admin, err = next.Listen(adminListener, "proxy.admin", fleet.Proxy.Admin); err != nil {
			return err
		}
	}
	// The admin server outlives the proxy, so that operators can observe a drain.
	back, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, back := errgroup.WithContext(back)
	// If the admin server fails, the proxy ends too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(back, cancel)()
	g.Go(func() error {
		defer stop()
		return px.Run(ctx)
	})
	if d.Edge != nil {
		g.Go(func() error { return d.Edge.Run(ctx, nil) })
	}
	g.Go(func() error { return lead(back, next, px) })
	g.Go(func() error { s.logReadiness(ctx, px, planes.String()); return nil })
	g.Go(func() error {
		mux := adminserver.Handler(d.Metrics, func() string { return proxyReady(ctx, px, d.Room.Err()) })
		mux.Handle("GET /plan", planHandler(func() []policies.Plan {
			if plan := px.Snapshot().Plan(); plan != nil {
				return plan.Plans()
			}
			return nil
		}))
		return d.Serve(back, admin, mux)
	})
	return g.Wait()
}

// lead stops the predecessor as soon as the proxy serves, and retires the proxy once a successor
// does. It returns then, or when ctx ends.
func lead(ctx context.Context, next *daemon.Upgrade, px *proxy.Proxy) error {
	select {
	case <-px.Ready():
	case <-ctx.Done():
		return nil
	}
	before, err := next.Finish(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	before.Close() // the processes of a proxy exchange nothing further
	if after := next.WaitForSuccessor(ctx, nil); after != nil {
		after.Close()
		px.Retire()
	}
	return nil
}

// logReadiness logs when the proxy serves, and until then what it waits for.
func (s *settings) logReadiness(ctx context.Context, px *proxy.Proxy, target string) {
	notice := time.NewTimer(noticeAfter)
	defer notice.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-notice.C:
			s.Announce(slog.LevelInfo, "not serving yet: the control plane at %s has sent no plan, or its address is in use here (--listen takes another one); use --log info for details", target)
		case <-px.Ready():
			if a := px.Addr(); a != nil {
				s.Announce(slog.LevelInfo, "proxy serves on http://%s", a)
			}
			return
		}
	}
}

// proxyReady returns why the proxy accepts no requests; "" if it does.
func proxyReady(ctx context.Context, px *proxy.Proxy, room error) string {
	switch {
	case ctx.Err() != nil:
		return "draining"
	case room != nil:
		return room.Error()
	}
	select {
	case <-px.Ready():
		return ""
	default:
		return "no plan received from the control plane yet"
	}
}
