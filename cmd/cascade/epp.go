package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/headroom"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/endpointpicker"
)

// eppFlags are the flags of "cascade epp".
type eppFlags struct {
	file                               fleetFile
	nodeID, control, model, host       string
	grpcPort, healthPort, metricsPort  uint16
	fallbacks                          int
	secure                             bool
	certPath                           string
	poolName, poolNamespace, poolGroup string
	drain                              time.Duration
}

// ignoredEPPFlags are flags of the reference endpoint picker that its Helm charts pass and that
// have no meaning here: Cascade's migrators know their engines, and every replica of this
// command serves.
var ignoredEPPFlags = [...]string{
	"config-file", "v", "zap-encoder", "zap-log-level", "tracing", "metrics-endpoint-auth", "health-checking", "ha-enable-leader-election",
	"endpoint-selector", "endpoint-target-ports", "total-queued-requests-metric", "total-running-requests-metric",
	"kv-cache-usage-percentage-metric", "lora-info-metric", "cache-info-metric", "model-server-metrics-path",
}

// newEPP is "cascade epp": the endpoint picker.
func newEPP(s *settings) *cobra.Command {
	p := &eppFlags{}
	c := &cobra.Command{
		Use:   "epp -c FILE",
		Short: "Run an endpoint picker (EPP) for a Gateway API Inference Extension gateway",
		Long: `Epp serves the Endpoint Picker Protocol: for each request, a gateway with an InferencePool asks
it by ext_proc for the endpoints to send the request to. It chooses as Cascade's routes do: a
replica of the stage of the prompt's length, by load or by prefix key; with --fallbacks, a second
one, one of the next longer stage and any other follow.

It gets plans and endpoints over xDS from the control plane, as a proxy does, and continues with
the last ones while the control plane is down. It holds no state, so that any number of
them may run. The endpoints are the front ends of the migrators, which must be in the
gateway's pool.

It listens on loopback in plain text. With --host it listens elsewhere, with the certificates
of the fleet file's tls section (mutual TLS), with those of --cert-path, or, with
--secure-serving, with a new self-signed one, as the reference picker does. Metrics, /healthz
and /readyz are on --metrics-port, on loopback or with the fleet's certificates.

The flags of the reference picker have their meaning there; those that its Helm charts pass
and that mean nothing here are accepted. On SIGTERM it reports that it does not serve and ends
after the last response, or after --drain.`,
		Example: `  cascade epp -c fleet.yaml                         # beside a gateway on the same host
  cascade epp -c fleet.yaml --host 0.0.0.0 --secure-serving --pool-name llama --pool-namespace default
  cascade epp --control 127.0.0.1:18000 --model llama-3.1-8b`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.file.path == "" && p.control == "" {
				return usageErrorf(cmd, "name a fleet file with -c, or the control plane with --control")
			}
			fleet := wiring.Fleet{}
			if p.file.path != "" {
				var err error
				if fleet, err = p.file.load(cmd); err != nil {
					return err
				}
			}
			return s.runEPP(cmd.Context(), fleet, p)
		},
	}
	p.file.flag(c, "fleet file")
	f := c.Flags()
	f.StringVar(&p.nodeID, "node-id", wiring.DefaultNodeID("epp"), "name of this picker; every node of a fleet needs one of its own")
	f.StringVar(&p.control, "control", "", controlUsage)
	f.StringVar(&p.model, "model", "", "the model of the gateway's pool; empty: the one that the request's host name or body says")
	f.IntVar(&p.fallbacks, "fallbacks", 0, "how many addresses follow the first one, 0 to 3, for gateways that try a list in order; Envoy's ORIGINAL_DST clusters can read one only")
	f.StringVar(&p.host, "host", "127.0.0.1", "IP address to listen on")
	f.Uint16Var(&p.grpcPort, "grpc-port", 9002, "port of the picker (ext_proc)")
	f.Uint16Var(&p.healthPort, "grpc-health-port", 9003, "port of the gRPC health service, for probes; in plain text")
	f.Uint16Var(&p.metricsPort, "metrics-port", 9090, "port of /metrics, /healthz and /readyz")
	f.BoolVar(&p.secure, "secure-serving", false, "without other certificates, serve TLS with a self-signed one")
	f.StringVar(&p.certPath, "cert-path", "", "directory with tls.crt and tls.key to serve TLS with; gateways need no certificate then")
	f.StringVar(&p.poolName, "pool-name", "", "name of the InferencePool, for logs")
	f.StringVar(&p.poolNamespace, "pool-namespace", "", "its namespace, for logs")
	f.StringVar(&p.poolGroup, "pool-group", "", "its API group, for logs")
	f.DurationVar(&p.drain, "drain", 2*time.Minute, "how long responses may go on after SIGTERM; what is left is cut")
	for _, name := range ignoredEPPFlags {
		f.String(name, "", "ignored")
		f.Lookup(name).Hidden = true
	}
	f.Lookup("ha-enable-leader-election").NoOptDefVal = "true"
	f.Lookup("node-id").DefValue = "epp@<host name>"
	return c
}

func (s *settings) runEPP(ctx context.Context, fleet wiring.Fleet, p *eppFlags) error {
	m, err := s.newControlConns(fleet, component{identity.Proxy, p.nodeID}, p.control)
	if err != nil {
		return err
	}
	defer m.close()
	if p.poolName != "" {
		m.log = m.log.With("pool", p.poolNamespace+"/"+p.poolName)
	}
	tlsOptions, err := p.credentials(m.certs)
	if err != nil {
		return err
	}
	metrics, room, status := adminserver.NewRegistry(), headroom.New(headroom.Read(), m.log), health.NewServer()
	metrics.MustRegister(room, certs.Expiries{Own: m.certs})
	picker, err := endpointpicker.New(endpointpicker.Config{
		Model: p.model, Fallbacks: p.fallbacks, BodyMemory: int64(fleet.Bodies.Proxy) << 20, Health: status, Metrics: metrics, Logger: m.log,
	})
	if err != nil {
		return err
	}
	xds, err := client.New(client.Config{
		Target: m.control[0], Credentials: m.certs.ControlCredentials(m.control[0]), OtherServers: m.servers(), NodeID: p.nodeID, Watcher: picker, Logger: m.log,
	})
	if err != nil {
		return err
	}
	metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cascade_endpoint_picker_control_plane_connected", Help: "1: plans come from the control plane; 0: the last ones are used.",
	}, func() float64 {
		if xds.Connected() {
			return 1
		}
		return 0
	}))
	var listeners [3]net.Listener
	for i, address := range [...]string{p.address(p.grpcPort), p.address(p.healthPort), p.metricsAddress(m.certs)} {
		if listeners[i], err = net.Listen("tcp", address); err != nil {
			for _, l := range listeners[:i] {
				l.Close()
			}
			return err
		}
	}
	service := grpc.NewServer(append(picker.Options(), tlsOptions...)...)
	picker.Register(service)
	healthpb.RegisterHealthServer(service, status)
	probes := grpc.NewServer()
	healthpb.RegisterHealthServer(probes, status)
	s.announce(slog.LevelInfo, "endpoint picker on %s, health on %s, metrics on %s", listeners[0].Addr(), listeners[1].Addr(), listeners[2].Addr())
	notifySystemd(m.log, systemdReady)

	// What responses need outlives ctx until the last of them has ended.
	back, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, back := errgroup.WithContext(back)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(back, cancel)()
	defer context.AfterFunc(ctx, status.Shutdown)()
	g.Go(func() error {
		defer stop()
		return serveGRPC(ctx, service, room.Listener(listeners[0]), p.drain)
	})
	g.Go(func() error { return serveGRPC(back, probes, listeners[1], 0) })
	g.Go(func() error { return xds.Run(back) })
	g.Go(func() error {
		return adminserver.Serve(back, listeners[2], adminserver.Handler(metrics, func() string { return eppReady(ctx, picker) }),
			adminserver.Access{Hosts: fleet.Fleet.Control.AdminHosts, Certificate: m.certs, TrustDomain: fleet.Fleet.TLS.TrustDomain})
	})
	return g.Wait()
}

// eppReady returns why the picker answers no requests; "" if it does.
func eppReady(ctx context.Context, picker *endpointpicker.Server) string {
	switch {
	case ctx.Err() != nil:
		return "draining"
	case !picker.Ready():
		return "no stages received from the control plane yet"
	}
	return ""
}

func (p *eppFlags) address(port uint16) string {
	return net.JoinHostPort(p.host, strconv.Itoa(int(port)))
}

// metricsAddress returns the address of the metrics: without certificates, on loopback.
func (p *eppFlags) metricsAddress(own *certs.Provider) string {
	if own != nil {
		return p.address(p.metricsPort)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(int(p.metricsPort)))
}

// serveGRPC serves on l, which it closes, until ctx ends, and then until the last stream has
// ended, or for the time of drain: what is left is cut.
func serveGRPC(ctx context.Context, server *grpc.Server, l net.Listener, drain time.Duration) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		cut := time.AfterFunc(drain, server.Stop)
		defer cut.Stop()
		server.GracefulStop()
	})
	err := server.Serve(l)
	if stop() {
		return fmt.Errorf("gRPC server on %s: %w", l.Addr(), err)
	}
	<-stopped
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
