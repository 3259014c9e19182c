package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/controld"
	"github.com/cascadeinfer/cascade/cmd/internal/planrepair"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/xds/store"
	"github.com/cascadeinfer/cascade/xds/store/kubernetes"
)

// newControl is "cascade-kube control": the control plane, with its state in Kubernetes.
func newControl(a *cli.App) *cobra.Command {
	var path, kubeconfig, metrics string
	var repair bool
	var from []string
	own := config.Control{}
	c := &cobra.Command{
		Use:   "control -c FILE",
		Short: "Run the control plane with its state in Kubernetes",
		Long: `Control is "cascade control", and the state of the fleet file may also be
kubernetes://NAMESPACE/NAME: a Lease of that name, and ConfigMaps whose names begin with it.
Several control planes (control.peers) share it; one of them leads, as "kubectl get lease"
shows.

In a Pod it logs in by the Pod's ServiceAccount, which needs the Role of
deploy/kubernetes/control-role.yaml; elsewhere --kubeconfig says how.

While the API server does not answer, traffic is routed by the last plan, and no other is
made.

With --repair it starts nothing: it is "cascade plan repair" for a state in Kubernetes, for a
Lease or ConfigMaps that were damaged, so that no control plane starts. It asks the admin
servers of migrators and proxies which plan they follow, and stores the newest one of each
model, under its epoch. The unreadable root is kept as the ConfigMap NAME-corrupt-TIME.

To remove the state:

  kubectl delete lease,configmap -n NAMESPACE -l app.kubernetes.io/managed-by=cascade-kube,app.kubernetes.io/instance=NAME`,
		Example: `  cascade-kube control -c /etc/cascade/fleet.yaml
  cascade-kube control -c fleet.yaml --kubeconfig ~/.kube/config
  kubectl port-forward pod/replica-0 9200 &
  cascade-kube control -c fleet.yaml --kubeconfig ~/.kube/config --repair --from http://127.0.0.1:9200`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return cli.Usagef(cmd, `name a fleet file with -c; "cascade config explain --example" prints one to start from`)
			}
			if err := cli.RequireFlag(cmd, "repair", "from"); err != nil {
				return err
			}
			log, err := a.Logger()
			if err != nil {
				return err
			}
			file, err := wiring.Load(path)
			if err != nil {
				return err
			}
			if repair {
				return repairPlan(cmd.Context(), a, file, kubeconfig, from)
			}
			return controld.Run(cmd.Context(), controld.Config{
				Fleet: file, Path: path, Own: own, Metrics: metrics, Logger: log,
				OpenState: func(f *wiring.Fleet) (*store.Store, error) { return openState(f, kubeconfig) },
				Started:   a.AnnounceReady,
			})
		},
	}
	f := c.Flags()
	f.StringVarP(&path, "config", "c", "", "fleet file; watched for changes")
	f.StringVar(&own.Listen, "listen", "", "host:port of this control plane's xDS and load reports, where it is not control.listen of the file")
	f.StringVar(&own.Admin, "admin", "", "host:port of this control plane's /status, where it is not control.admin of the file")
	f.StringVar(&metrics, adminserver.MetricsFlag, "", adminserver.MetricsUsage)
	f.StringVar(&own.Name, "name", "", "name of this control plane among several, where it is not control.name of the file")
	f.BoolVar(&repair, "repair", false, "rebuild a stored plan that cannot be read, and end")
	f.StringSliceVar(&from, "from", nil, "with --repair: base URLs of further admin servers of migrators and proxies")
	kubeconfigFlag(c, &kubeconfig)
	return c
}

// repairPlan rebuilds the plan of a fleet from the plans that its daemons follow.
func repairPlan(ctx context.Context, a *cli.App, fleet wiring.Fleet, kubeconfig string, from []string) error {
	namespace, name, ok := fleet.KubernetesState()
	if !ok {
		return fmt.Errorf("state %s is not in Kubernetes: run cascade plan repair", fleet.State)
	}
	state, err := openKubernetes(namespace, name, kubeconfig)
	if err != nil {
		return err
	}
	defer state.Close()
	ctx, cancel := context.WithTimeout(ctx, planrepair.Timeout)
	defer cancel()
	return planrepair.Run(ctx, planrepair.Config{Store: state, Fleet: fleet, From: from, Out: a.Stdout, Problems: a.Stderr})
}

// openKubernetes returns a state in Kubernetes. The caller closes it.
func openKubernetes(namespace, name, kubeconfig string) (*store.Store, error) {
	server, _, err := loadKubeconfig(kubeconfig)
	if err == nil {
		var c *kubernetes.Client
		if c, err = kubernetes.New(kubernetes.Config{REST: server, Namespace: namespace, Name: name}); err == nil {
			return store.New(c), nil
		}
	}
	return nil, fmt.Errorf("state kubernetes://%s/%s: %w", namespace, name, err)
}

// openState opens the state of a fleet, also in Kubernetes.
func openState(f *wiring.Fleet, kubeconfig string) (*store.Store, error) {
	if namespace, name, ok := f.KubernetesState(); ok {
		return openKubernetes(namespace, name, kubeconfig)
	}
	return f.OpenState()
}
