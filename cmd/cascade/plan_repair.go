package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/planrepair"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/store"
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
a directory, the key "plan" in etcd (in Kubernetes: "cascade-kube repair"). Proxies and migrators continue with the last plan meanwhile. Repair asks their
admin servers (proxy.admin and replicas[].admin of the file, on this host, and those of
--from) which plan they follow, and writes the newest one of each model, under its epoch.
The unreadable plan is kept beside it, as plan.json.corrupt-TIME, or under the key
corrupt/TIME.

What only the stored plan had is lost: drains, pins and former plans, the history, and which
policy modules run. Drain and pin again, and push modules again.

A plan that was written by a newer version is not corrupt: start that version instead.

Exit codes: 0 when the plan is rebuilt, 1 when it is readable, or no plan is found.`,
		Example: `  cascade plan repair -c fleet.yaml
  cascade plan repair -c fleet.yaml --from http://127.0.0.1:9200`,
		Args: exactArgs(0),
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
	c := planrepair.Config{Fleet: fleet, From: from, Out: s.stdout, Problems: s.stderr}
	if _, _, ok := fleet.KubernetesState(); ok {
		return fmt.Errorf("state %s: this command has no Kubernetes client: run cascade-kube repair", fleet.State)
	}
	client, err := fleet.OpenEtcd()
	if err != nil {
		return err
	}
	if client != nil {
		defer client.Close()
		plan := client.Plan()
		c.Store, c.Name, c.SetAside = plan, "the plan in "+fleet.State, plan.SetAside
		return planrepair.Run(ctx, c)
	}
	if fleet.StateDir() == "" {
		return errors.New("the fleet file has no state: its control plane keeps the plan in memory, and there is nothing to repair")
	}
	path := filepath.Join(fleet.StateDir(), "plan.json")
	file, err := store.NewFile(path)
	if err != nil {
		return err
	}
	c.Store, c.Name, c.SetAside = file, path, func(_ context.Context, now time.Time) (string, error) {
		kept := path + ".corrupt-" + now.UTC().Format("20060102T150405Z")
		return kept, os.Rename(path, kept)
	}
	return planrepair.Run(ctx, c)
}
