package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/tracing"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/client"
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
		Long: `Proxy is a small Envoy-style data plane that gets its whole configuration over xDS from the
control plane. It listens on the address of the published listener (proxy.listen of the
fleet file), and routes by its last tables while the control plane is down.

On SIGTERM it stops accepting and ends when the last stream has ended, or after
--drain. A second signal ends it at once.

To upgrade, start the new one beside the old, as the same user, with the same --node-id,
--listen and --runtime-dir: once it has its configuration it takes over the listening
sockets, so that no connection is refused, and the old one ends 5 s after its last stream,
however long that takes.`,
		Example: `  cascade proxy -c fleet.yaml
  cascade proxy -c fleet.yaml --node-id edge-2 --listen 127.0.0.1:8090
  cascade proxy -c fleet.yaml    # again, from the new binary: upgrades
  curl 127.0.0.1:8080/v1/models`,
		Args: exactArgs(0),
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
	f.StringVar(&p.control, "control", "", controlUsage)
	f.StringVar(&p.listen, "listen", "", "host:port to serve on instead of the published one")
	f.DurationVar(&p.drain, "drain", proxy.DefaultDrainTimeout, "how long streams may go on after SIGTERM; what is left is cut")
	runtimeDirFlag(c, &p.runtime)
	f.Lookup("node-id").DefValue = "proxy@<host name>"
	return c
}

func (s *settings) runProxy(ctx context.Context, fleet wiring.Fleet, p *proxyFlags) error {
	m, err := s.newControlConns(fleet, component{identity.Proxy, p.nodeID}, p.control)
	if err != nil {
		return err
	}
	defer m.close()
	spans, err := tracing.New(ctx, tracing.Config{Version: version(), Logger: m.log})
	if err != nil {
		return err
	}
	defer spans.Close()
	metrics, room := adminserver.NewRegistry(), headroom.New(headroom.Read(), m.log)
	metrics.MustRegister(room)
	cfg := proxy.Config{
		Client:       client.Config{Target: m.control[0], Credentials: m.certs.ControlCredentials(m.control[0]), OtherServers: m.servers(), NodeID: p.nodeID},
		DrainTimeout: p.drain, Admit: room.Admit, WrapListener: room.Listener, Registry: metrics, Tracer: spans.Tracer("proxy"), Logger: m.log,
		BodyMemory: int64(fleet.Bodies.Proxy) << 20, BodyRate: int64(fleet.Bodies.Rate),
	}
	next, err := beginUpgrade(ctx, p.runtime, "proxy:"+p.nodeID, cmp.Or(p.listen, fleet.Proxy.Listen))
	if err != nil {
		return fmt.Errorf("proxy %s: %w", p.nodeID, err)
	}
	defer next.abandon()
	if p.listen != "" {
		if cfg.Listener, err = next.listen(clientsListener, p.listen); err != nil {
			return err
		}
		defer cfg.Listener.Close()
	}
	var px *proxy.Proxy
	cfg.Listen = func(network, address string) (net.Listener, error) {
		select {
		case <-px.Ready(): // the takeover is over
			return next.reopen(address)(network, address)
		default:
			return next.listen(address, address)
		}
	}
	edge, err := fleet.DownstreamCertificate(m.log)
	if err != nil {
		return err
	}
	metrics.MustRegister(certs.Expiries{Own: m.certs, Edge: edge})
	if edge != nil {
		cfg.TLS = edge.TLS()
	}
	cfg.Problems = problems(room, certs.Expiries{Own: m.certs, Edge: edge})
	if px, err = proxy.New(cfg); err != nil {
		return err
	}
	var admin net.Listener
	if fleet.Proxy.Admin != "" {
		if admin, err = next.listen(adminListener, fleet.Proxy.Admin); err != nil {
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
	if edge != nil {
		g.Go(func() error { return edge.Run(ctx, nil) })
	}
	g.Go(func() error { return next.runProxy(back, px, m.log) })
	g.Go(func() error { s.logReadiness(ctx, px, strings.Join(m.control, " and ")); return nil })
	g.Go(func() error {
		mux := adminserver.Handler(metrics, func() string { return proxyReady(ctx, px, room.Err()) })
		mux.Handle("GET /plan", planHandler(func() []policies.Plan {
			s := px.Snapshot()
			if s == nil {
				return nil
			}
			plans, err := client.ReadPlans(s)
			if err != nil {
				return nil // a roll-out is in progress: ask again
			}
			return plans
		}))
		return adminserver.Serve(back, admin, mux,
			adminserver.NewAccess(fleet.Fleet, m.certs))
	})
	return g.Wait()
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
			s.announce(slog.LevelInfo, "not serving yet: the control plane at %s has sent no listener, or its address is in use here (--listen takes another one); use --log info for details", target)
		case <-px.Ready():
			if a := px.Addr(""); a != nil {
				s.announce(slog.LevelInfo, "proxy serves on http://%s", a)
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
		return "no listener received from the control plane yet"
	}
}
