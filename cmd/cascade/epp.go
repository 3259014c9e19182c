package main

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/health"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/pickerserver"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/endpointpicker"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// eppFlags are the flags of "cascade epp".
type eppFlags struct {
	pickerserver.Flags
	file                   fleetFile
	nodeID, control, model string
}

// newEPP is "cascade epp": the endpoint picker.
func newEPP(s *settings) *cobra.Command {
	p := &eppFlags{}
	c := &cobra.Command{
		Use:   "epp -c FILE",
		Short: "Run an endpoint picker (EPP) for a Gateway API Inference Extension gateway",
		Long: `Epp serves the Endpoint Picker Protocol: for each request, a gateway with an InferencePool asks
it by ext_proc for the endpoints to send the request to. It chooses as Cascade's routes do: a
replica of the stage of the prompt's length, by load; with --fallbacks, a second one, one of the
next longer stage and any other follow.

It gets plans and endpoints over xDS from the control plane, as a proxy does, and continues with
the last ones while the control plane is down. It holds no state, so that any number of
them may run. The endpoints are the front ends of the migrators, which must be in the
gateway's pool.

It listens on loopback in plain text. With --host it listens elsewhere, with the certificates
of the fleet file's tls section (mutual TLS), with those of --cert-path, or, with
--secure-serving, with a new self-signed one, as the reference picker does. Metrics, /healthz
and /readyz are on --metrics-port, on loopback or with the fleet's certificates.

Flags that the reference picker has, too, mean the same; those that its Helm charts pass
and that mean nothing here are accepted. On SIGTERM it reports that it does not serve and ends
after the last response, or after --drain.`,
		Example: `  cascade epp -c fleet.yaml                         # beside a gateway on the same host
  cascade epp -c fleet.yaml --host 0.0.0.0 --secure-serving --pool-name llama --pool-namespace default
  cascade epp --control 127.0.0.1:18000 --model llama-3.1-8b`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.file.path == "" && p.control == "" {
				return cli.Usagef(cmd, "name a fleet file with -c, or the control plane with --control")
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
	f.StringVar(&p.control, "control", "", daemon.ControlUsage)
	f.StringVar(&p.model, "model", "", "the model of the gateway's pool; empty: the one that the request's host name or body says")
	p.AddTo(c)
	f.StringVar(&p.PoolName, "pool-name", "", "name of the InferencePool, for logs")
	f.StringVar(&p.PoolNamespace, "pool-namespace", "", "its namespace, for logs")
	f.StringVar(&p.PoolGroup, "pool-group", "", "its API group, for logs")
	f.Lookup("node-id").DefValue = "epp@<host name>"
	return c
}

func (s *settings) runEPP(ctx context.Context, fleet wiring.Fleet, p *eppFlags) error {
	log, err := s.Logger()
	if err != nil {
		return err
	}
	if p.PoolName != "" {
		log = log.With("pool", p.PoolNamespace+"/"+p.PoolName)
	}
	d, err := daemon.New(ctx, daemon.Config{Log: log, Fleet: fleet, Role: identity.Proxy, Name: p.nodeID})
	if err != nil {
		return err
	}
	defer d.Close()
	planes, err := d.ControlPlanes(p.control)
	if err != nil {
		return err
	}
	credentials, err := p.Credentials(d.Certs, log)
	if err != nil {
		return err
	}
	status := health.NewServer()
	picker, err := endpointpicker.New(endpointpicker.Config{
		Model: p.model, Fallbacks: p.Fallbacks, Health: status, Metrics: d.Metrics, Logger: log,
		MaxBody: int(fleet.Fleet.Proxy.BodyLimit.Bytes()), BodyMemory: fleet.Fleet.Proxy.BodyLimit.ProxyBytes(),
	})
	if err != nil {
		return err
	}
	follow := planes.Client(p.nodeID)
	follow.Watcher, follow.Logger = picker, log
	xds, err := routing.New(follow)
	if err != nil {
		return err
	}
	d.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cascade_endpoint_picker_control_plane_connected", Help: "1: plans come from the control plane; 0: the last ones are used.",
	}, func() float64 {
		if xds.Connected() {
			return 1
		}
		return 0
	}))
	listeners, err := pickerserver.Listen(p.Address(p.GRPCPort), p.Address(p.HealthPort), p.MetricsAddress(d.Certs != nil))
	if err != nil {
		return err
	}
	s.AnnounceReady(fmt.Sprintf("endpoint picker on %s, health on %s, metrics on %s", listeners[0].Addr(), listeners[1].Addr(), listeners[2].Addr()))

	return pickerserver.Servers{
		Picker: picker, Health: status, TLS: credentials, GRPC: d.Room.Listener(listeners[0]), Probes: listeners[1], Drain: p.Drain,
		While: []func(context.Context) error{xds.Run, func(back context.Context) error {
			return d.ServeMetrics(back, listeners[2], func() string { return eppReady(ctx, picker) })
		}},
	}.Serve(ctx)
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
