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
	"google.golang.org/grpc/health"

	"github.com/cascadeinfer/cascade/cmd/cascade-kube/internal/clusterwatch"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/daemon"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/cmd/internal/pickerserver"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/endpointpicker"
)

// eppFlags are the flags of "cascade-kube epp".
type eppFlags struct {
	pickerserver.Flags
	kubeconfig   string
	metricsCerts string // folder; "": metrics are on loopback
	bodies       int    // MiB
}

// newEPP is "cascade-kube epp": an endpoint picker without a control plane.
func newEPP(a *cli.App) *cobra.Command {
	p := &eppFlags{}
	c := &cobra.Command{
		Use:   "epp --pool-name NAME",
		Short: "Run an endpoint picker (EPP) for an InferencePool, without a control plane",
		Long: `Epp serves the Endpoint Picker Protocol for one InferencePool of the Gateway API Inference
Extension, as the reference picker does. Its endpoints are the pool's ports at the Pods that the
pool selects and that are ready and do not terminate; each gets an equal share of the requests
that the gateway allows it.

It needs neither a control plane nor migrators: use it where a pool is to be tried before its Pods
have migrators. "cascade epp" picks by length and load; it gets its endpoints from the control
plane, and has the same flags besides those that say where endpoints come from.

It follows the pool and its Pods in the API server, for which its ServiceAccount needs the Role of
deploy/kubernetes/epp.yaml. While the API server is away the last endpoints stay; a pool that is
deleted has none, and requests get a 503.

It listens on loopback in plain text; --host makes it listen elsewhere, with the certificate of
--cert-path or, with --secure-serving, with a new self-signed one, as the reference picker does.
Metrics, /healthz and /readyz are on --metrics-port of loopback or, with --metrics-cert-path and a
--host off loopback, of --host, over TLS to any client with a certificate of ca.crt. Flags that the
reference picker has, too, mean the same; those that its Helm charts pass and that mean nothing here are accepted. Of
--config-file only the two plugins of the Inference Extension's conformance suite count: with both of
them clients choose their endpoints by a header, which is for that suite alone.`,
		Example: `  cascade-kube epp --pool-name vllm --pool-namespace llm --host 0.0.0.0 --secure-serving
  cascade-kube epp --pool-name vllm --kubeconfig ~/.kube/config`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.PoolName == "" {
				return cli.Usagef(cmd, "--pool-name is required: the InferencePool whose Pods are picked")
			}
			if err := config.BodyLimit(p.bodies).Validate(); err != nil {
				return cli.Usagef(cmd, "--body-limit %w", err)
			}
			log, err := a.Logger()
			if err != nil {
				return err
			}
			return p.run(cmd.Context(), log)
		},
	}
	p.AddTo(c)
	f := c.Flags()
	f.StringVar(&p.PoolName, "pool-name", "", "name of the InferencePool")
	f.StringVar(&p.PoolNamespace, "pool-namespace", "", "its namespace; default: the Pod's own, or the kubeconfig's")
	f.StringVar(&p.PoolGroup, "pool-group", poolGroup, "its API group")
	f.Lookup("config-file").Usage, f.Lookup("config-file").Hidden = "the reference picker's configuration, for the conformance suite", false
	f.StringVar(&p.metricsCerts, "metrics-cert-path", "", "directory with tls.crt, tls.key and ca.crt: serves --metrics-port on --host, over TLS; needs a --host off loopback")
	f.IntVar(&p.bodies, "body-limit", length.BodyLimit>>20, "size of the largest request body, in MiB, as proxy.body_limit of a fleet file")
	kubeconfigFlag(c, &p.kubeconfig)
	return c
}

// metricsCertificate returns the certificate of the server of metrics, and its address; nil and loopback without one.
func (p *eppFlags) metricsCertificate(log *slog.Logger) (*certs.Provider, string, error) {
	if p.metricsCerts == "" {
		return nil, p.MetricsAddress(false), nil
	}
	in := func(name string) string { return filepath.Join(p.metricsCerts, name) }
	own, err := certs.New(certs.Config{Cert: in("tls.crt"), Key: in("tls.key"), CA: in("ca.crt"), Logger: log})
	if err != nil {
		err = fmt.Errorf("--metrics-cert-path: %w", err)
	}
	return own, p.MetricsAddress(true), err
}

// poolGroup is the API group of InferencePools, of which this command reads version v1.
const poolGroup = "inference.networking.k8s.io"

// run serves until ctx ends.
func (p *eppFlags) run(ctx context.Context, log *slog.Logger) error {
	if p.PoolGroup != poolGroup {
		return fmt.Errorf("--pool-group %s: must be %s: pools of other groups are not read", p.PoolGroup, poolGroup)
	}
	// A --host that is a name counts as what it resolves to, as for the listener.
	if a, err := net.ResolveTCPAddr("tcp", p.Address(p.MetricsPort)); p.metricsCerts != "" && err == nil && a.IP.IsLoopback() {
		return errors.New("--metrics-cert-path: --host is on loopback, where metrics are in plain text: set --host, or leave the flag out")
	}
	conformance, err := readsTestHeaders(p.ConfigFile)
	if err != nil {
		return err
	}
	if conformance {
		log.Warn("clients choose their endpoints, because the configuration has the plugins of the conformance suite: not for production", "file", p.ConfigFile)
	}
	client, namespace, err := newClients(p.kubeconfig, p.PoolNamespace)
	if err != nil {
		return err
	}
	pods, err := clusterwatch.New(clusterwatch.Config{Client: client.typed, Dynamic: client.dynamic, Namespace: namespace, Pool: p.PoolName, ForgetDeleted: true, Logger: log})
	if err != nil {
		return err
	}
	credentials, err := p.Credentials(nil, log)
	if err != nil {
		return err
	}
	own, metricsAddress, err := p.metricsCertificate(log)
	if err != nil {
		return err
	}
	d, err := daemon.New(ctx, daemon.Config{Log: log, Certs: own})
	if err != nil {
		return err
	}
	defer d.Close()
	status := health.NewServer()
	picker, err := endpointpicker.New(endpointpicker.Config{
		Fallbacks: p.Fallbacks, ConformanceTest: conformance, Health: status, Metrics: d.Metrics, Logger: log,
		MaxBody: p.bodies << 20, BodyMemory: config.BodyLimit(p.bodies).ProxyBytes(),
	})
	if err != nil {
		return err
	}
	listeners, err := pickerserver.Listen(p.Address(p.GRPCPort), p.Address(p.HealthPort), metricsAddress)
	if err != nil {
		return err
	}
	log.Info("endpoint picker started", "source", pods.String(), "picker", listeners[0].Addr().String(), "health", listeners[1].Addr().String(), "metrics", listeners[2].Addr().String())
	return pickerserver.Servers{
		Picker: picker, Health: status, TLS: credentials, GRPC: d.Room.Listener(listeners[0]), Probes: listeners[1], Drain: p.Drain,
		While: []func(context.Context) error{
			func(back context.Context) error {
				return pods.Run(back, func(c discovery.Cluster) { picker.UpdatePool(c.PoolEndpoints()) })
			},
			func(back context.Context) error { return serveProbes(back, listeners[2], d, pods, picker) },
		},
	}.Serve(ctx)
}

// serveProbes serves /metrics, /healthz and /readyz on l, which it closes, until ctx ends: off loopback over TLS.
func serveProbes(ctx context.Context, l net.Listener, d *daemon.Daemon, pods *clusterwatch.Watcher, picker *endpointpicker.Server) error {
	return d.ServeMetrics(ctx, l, func() string {
		if !picker.Ready() {
			return pods.String() + " was not read yet: " + strings.Join(pods.Faults(time.Now()), "; ")
		}
		return ""
	})
}
