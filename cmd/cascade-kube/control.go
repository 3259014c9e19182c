package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/controld"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// newControl is "cascade-kube control": the control plane, with its state in Kubernetes.
func newControl(s *settings) *cobra.Command {
	var path, kubeconfig, metrics string
	own := config.Control{}
	c := &cobra.Command{
		Use:   "control -c FILE",
		Short: "Run the control plane with its state in Kubernetes",
		Long: `Control is "cascade control", and the state of the fleet file may also be
kubernetes://NAMESPACE/NAME: a Lease of that name, and ConfigMaps and a Secret whose names
begin with it. Several control planes (control.peers) share it; one of them leads, as
"kubectl get lease" shows.

In a Pod it logs in by the Pod's ServiceAccount, which needs the Role of
deploy/kubernetes/control-role.yaml; elsewhere --kubeconfig says how.

While the API server does not answer, traffic is routed by the last plan, and no other is
made. To remove the state:

  kubectl delete lease,configmap,secret -n NAMESPACE -l app.kubernetes.io/managed-by=cascade-kube,app.kubernetes.io/instance=NAME`,
		Example: `  cascade-kube control -c /etc/cascade/fleet.yaml
  cascade-kube control -c fleet.yaml --kubeconfig ~/.kube/config`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return &usageError{cmd.CommandPath(), errNoFile}
			}
			log, err := s.logger()
			if err != nil {
				return err
			}
			file, err := wiring.Load(path)
			if err != nil {
				return err
			}
			return controld.Run(cmd.Context(), controld.Config{
				Fleet: file, Path: path, Own: own, Metrics: metrics, Logger: log,
				OpenState: func(f *wiring.Fleet) (*wiring.SharedState, error) { return openState(f, kubeconfig) },
				Started:   func(line string) { fmt.Fprintln(s.stderr, line) },
			})
		},
	}
	f := c.Flags()
	f.StringVarP(&path, "config", "c", "", "fleet file; watched for changes")
	f.StringVar(&own.Listen, "listen", "", "host:port of this control plane's xDS and load reports, where it is not control.listen of the file")
	f.StringVar(&own.Admin, "admin", "", "host:port of this control plane's /status, where it is not control.admin of the file")
	f.StringVar(&metrics, adminserver.MetricsFlag, "", adminserver.MetricsUsage)
	f.StringVar(&own.Name, "name", "", "name of this control plane among several, where it is not control.name of the file")
	kubeconfigFlag(c, &kubeconfig)
	return c
}

// errNoFile says that -c is missing.
var errNoFile = errors.New(`name a fleet file with -c; "cascade config example" prints one to start from`)

// kubeconfigFlag adds --kubeconfig.
func kubeconfigFlag(c *cobra.Command, to *string) {
	c.Flags().StringVar(to, "kubeconfig", "", "file that says where the API server is and how to log in; default: the ServiceAccount of this Pod")
}

// loadKubeconfig returns how to reach the API server.
func loadKubeconfig(path string) (*rest.Config, error) {
	if path == "" {
		c, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("the ServiceAccount of this Pod: %w; outside a cluster, name a file with --kubeconfig", err)
		}
		return c, nil
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig %s: %w", path, err)
	}
	return c, nil
}

// openKubernetes returns the client of a state. The caller closes it.
func openKubernetes(namespace, name, kubeconfig string) (*kubernetes.Client, error) {
	server, err := loadKubeconfig(kubeconfig)
	if err == nil {
		var c *kubernetes.Client
		if c, err = kubernetes.New(kubernetes.Config{REST: server, Namespace: namespace, Name: name}); err == nil {
			return c, nil
		}
	}
	return nil, fmt.Errorf("state kubernetes://%s/%s: %w", namespace, name, err)
}

// openState opens the state of a fleet, also in Kubernetes.
func openState(f *wiring.Fleet, kubeconfig string) (*wiring.SharedState, error) {
	namespace, name, ok := f.KubernetesState()
	if !ok {
		return f.OpenState()
	}
	c, err := openKubernetes(namespace, name, kubeconfig)
	if err != nil {
		return nil, err
	}
	return &wiring.SharedState{
		Plan: c.Plan(), Modules: c.Modules(), CreateOnce: c.CreateOnce, Close: c.Close,
		Counters: func(name string) fleet.Counters { return c.Counters(name) },
		Notes:    func(folder string) store.Notes { return c.Notes(folder) },
	}, nil
}

// exactArgs requires n arguments.
func exactArgs(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return &usageError{c.CommandPath(), fmt.Errorf("unexpected argument %q", args[n])}
		}
		if err := cobra.ExactArgs(n)(c, args); err != nil {
			return &usageError{c.CommandPath(), err}
		}
		return nil
	}
}
