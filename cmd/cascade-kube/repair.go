package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/planrepair"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
)

// newRepair is "cascade-kube repair": it rebuilds a plan object in Kubernetes.
func newRepair(s *settings) *cobra.Command {
	var path, kubeconfig string
	var from []string
	c := &cobra.Command{
		Use:   "repair -c FILE",
		Short: "Rebuild a plan in Kubernetes that cannot be read from the plans that the fleet follows",
		Long: `Repair is "cascade plan repair" for a state in Kubernetes: for a Lease or ConfigMaps that
were damaged, so that no control plane starts. It asks the admin servers of migrators and
proxies which plan they follow, and stores the newest one of each model, under its epoch. The
annotation of the Lease that named the unreadable plan is kept as cascade/corrupt-TIME.`,
		Example: `  kubectl port-forward pod/replica-0 9200 &
  cascade-kube repair -c fleet.yaml --kubeconfig ~/.kube/config --from http://127.0.0.1:9200`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return &usageError{cmd.CommandPath(), errNoFile}
			}
			fleet, err := wiring.Load(path)
			if err != nil {
				return err
			}
			namespace, name, ok := fleet.KubernetesState()
			if !ok {
				return fmt.Errorf("%s: its state is not in Kubernetes: run cascade plan repair", path)
			}
			client, err := openKubernetes(namespace, name, kubeconfig)
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(cmd.Context(), planrepair.Timeout)
			defer cancel()
			plan := client.Plan()
			return planrepair.Run(ctx, planrepair.Config{
				Store: plan, Name: "the plan in " + fleet.State, SetAside: plan.SetAside, Fleet: fleet, From: from, Out: s.stdout, Problems: s.stderr,
			})
		},
	}
	c.Flags().StringVarP(&path, "config", "c", "", "fleet file, for its state and the admin servers")
	c.Flags().StringSliceVar(&from, "from", nil, "base URLs of further admin servers of migrators and proxies")
	kubeconfigFlag(c, &kubeconfig)
	return c
}
