package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/planrepair"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// planHandler answers GET /plan, to this host only.
func planHandler(plans func() []policies.Plan) http.Handler {
	return adminserver.OnlyLocal(control.RestrictHosts(nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		_ = json.NewEncoder(w).Encode(planrepair.Followed{Plans: plans()})
	})))
}

// newPlanRepair is "cascade plan repair": it rebuilds the plan object of a fleet.
func newPlanRepair(s *settings) *cobra.Command {
	file, from := &fleetFile{}, []string{}
	c := &cobra.Command{
		Use:   "repair -c FILE",
		Short: "Rebuild a stored plan that cannot be read from the plans that the fleet follows",
		Long: `Repair is for a state whose plan is corrupt, so that no control plane starts: plan.json in
a directory, the key "root" in etcd (in Kubernetes: "cascade-kube control --repair").
Proxies and migrators continue with the last plan meanwhile. Repair asks their admin
servers (proxy.admin and replicas[].admin of the file, on this host, and those of --from)
which plan they follow, and writes the newest one of each model, under its epoch.
The unreadable plan is kept as corrupt/TIME: a file of the state directory, or a key.

What only the stored plan had is lost: drains, pins and former plans, the history, and which
policy modules run. Drain and pin again, and push modules again.

A plan that was written by a newer version is not corrupt: start that version instead.

Exit codes: 0 when the plan is rebuilt, 1 when it is readable, or no plan is found.`,
		Example: `  cascade plan repair -c fleet.yaml
  cascade plan repair -c fleet.yaml --from http://127.0.0.1:9200`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			fleet, err := file.load(cmd)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), planrepair.Timeout)
			defer cancel()
			return s.repairPlan(ctx, fleet, from)
		},
	}
	file.flag(c, "fleet file, for its state and the admin servers")
	c.Flags().StringSliceVar(&from, "from", nil, "base URLs of further admin servers of migrators and proxies")
	return c
}

// repairPlan rebuilds the plan of a fleet where it is stored.
func (s *settings) repairPlan(ctx context.Context, fleet wiring.Fleet, from []string) error {
	if _, _, ok := fleet.KubernetesState(); ok {
		return fmt.Errorf("state %s: this command has no Kubernetes client: run cascade-kube control --repair", fleet.State)
	}
	state, err := fleet.OpenState()
	if err != nil {
		return err
	}
	if state == nil {
		return errors.New("the fleet file has no state: its control plane keeps the plan in memory, and there is nothing to repair")
	}
	defer state.Close()
	return planrepair.Run(ctx, planrepair.Config{Store: state, Fleet: fleet, From: from, Out: s.Stdout, Problems: s.Stderr})
}
