package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/store"
)

// followedPlans is what GET /plan of a migrator or a proxy answers: the plans that it follows.
type followedPlans struct {
	Plans []policies.Plan `json:"plans"`
}

// planHandler answers GET /plan, to this host only.
func planHandler(plans func() []policies.Plan) http.Handler {
	return onlyLocal(control.RestrictHosts(nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("content-type", "application/json")
		_ = json.NewEncoder(w).Encode(followedPlans{plans()})
	})))
}

// repairTimeout bounds the time of a repair.
const repairTimeout = 30 * time.Second

// newPlanRepair is "cascade plan repair": it rebuilds the plan object of a fleet.
func newPlanRepair(s *settings) *cobra.Command {
	file, from := &fleetFile{}, []string{}
	c := &cobra.Command{
		Use:   "repair -c FILE",
		Short: "Rebuild a stored plan that cannot be read from the plans that the fleet follows",
		Long: `Repair is for a state whose plan is corrupt, so that no control plane starts: plan.json in
a directory, the key "plan" in etcd. Proxies and migrators continue with the last plan meanwhile. Repair asks their
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
			ctx, cancel := context.WithTimeout(cmd.Context(), repairTimeout)
			defer cancel()
			return s.repairPlan(ctx, fleet, from)
		},
	}
	file.flag(c, "fleet file, for its state and the admin servers")
	c.Flags().StringSliceVar(&from, "from", nil, "base URLs of further admin servers of migrators and proxies")
	return c
}

// storedPlan is where the plan of a fleet is stored.
type storedPlan struct {
	store.Store
	name string // of the file or key
	// setAside moves an unreadable plan away, and returns the name that it then has; ""
	// where the plan itself can be read.
	setAside func(context.Context, time.Time) (string, error)
	close    func()
}

// openPlan returns where the plan of a fleet is stored. The caller closes it.
func openPlan(fleet wiring.Fleet) (storedPlan, error) {
	client, err := fleet.OpenEtcd()
	if err != nil {
		return storedPlan{}, err
	}
	if client != nil {
		plan := client.Plan()
		return storedPlan{Store: plan, name: "the plan in " + fleet.State, setAside: plan.SetAside, close: func() { _ = client.Close() }}, nil
	}
	if fleet.StateDir() == "" {
		return storedPlan{}, errors.New("the fleet file has no state: its control plane keeps the plan in memory, and there is nothing to repair")
	}
	path := filepath.Join(fleet.StateDir(), "plan.json")
	file, err := store.NewFile(path)
	if err != nil {
		return storedPlan{}, err
	}
	return storedPlan{Store: file, name: path, close: func() {}, setAside: func(_ context.Context, now time.Time) (string, error) {
		kept := path + ".corrupt-" + now.UTC().Format("20060102T150405Z")
		return kept, os.Rename(path, kept)
	}}, nil
}

func (s *settings) repairPlan(ctx context.Context, fleet wiring.Fleet, from []string) error {
	plan, err := openPlan(fleet)
	if err != nil {
		return err
	}
	defer plan.close()
	watch, stop := context.WithCancel(ctx)
	updates := plan.Watch(watch)
	u := <-updates
	stop()
	for range updates { // until the watch has ended
	}
	var unreadable *fs.PathError
	switch {
	case errors.Is(u.Err, store.ErrFormat), errors.Is(u.Err, store.ErrUnavailable):
		return u.Err
	case errors.As(u.Err, &unreadable): // what it contains may be well
		return fmt.Errorf("%w: let this user read the file, or run this command as the control plane's user", u.Err)
	case u.Err == nil && u.Version != "":
		return fmt.Errorf("%s can be read: there is nothing to repair", plan.name)
	}
	plans, problems := s.askPlans(ctx, adminURLs(fleet, from))
	object := rebuildObject(plans, fleet)
	if len(object.Plans) == 0 {
		return fmt.Errorf("no migrator and no proxy named a plan, %s is as it was: name one that runs with --from, or remove it to begin with a first plan\n%s",
			plan.name, strings.Join(problems, "\n"))
	}
	kept := ""
	if u.Err != nil {
		if kept, err = plan.setAside(ctx, time.Now()); err != nil {
			return fmt.Errorf("keep the unreadable plan: %w", err)
		}
		if kept == "" {
			fmt.Fprintf(s.stdout, "%s itself can be read; the state beside it could not, and is removed: the leader writes it again\n", plan.name)
			return nil
		}
	}
	if _, err := plan.CompareAndSwap(ctx, "", object); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(s.stderr, "not asked:", p)
	}
	for _, p := range object.Plans {
		fmt.Fprintf(s.stdout, "%s: epoch %d, %s\n", p.Model, p.Epoch, plural(len(p.Stages), "stage"))
	}
	fmt.Fprintf(s.stdout, "%s is rebuilt; start the control planes, and order drains and pins, and push modules, again\n", plan.name)
	if kept != "" {
		fmt.Fprintf(s.stdout, "the unreadable plan is kept as %s\n", kept)
	}
	return nil
}

// adminURLs lists the admin servers of a fleet's migrators and proxies.
func adminURLs(fleet wiring.Fleet, from []string) []string {
	urls := slices.Clone(from)
	if fleet.Fleet.Proxy.Admin != "" {
		urls = append(urls, "http://"+fleet.Fleet.Proxy.Admin)
	}
	for _, r := range fleet.Fleet.Replicas {
		if r.Admin != "" {
			urls = append(urls, "http://"+r.Admin)
		}
	}
	return urls
}

// askPlans asks admin servers for the plans that they follow. problems says which did not answer.
func (s *settings) askPlans(ctx context.Context, urls []string) (plans []policies.Plan, problems []string) {
	for _, text := range urls {
		base, err := url.Parse(text)
		var followed followedPlans
		if err == nil {
			var body []byte
			if _, body, err = (controlRequest{base: base, path: "plan"}).exchange(ctx); err == nil {
				err = json.Unmarshal(body, &followed)
			}
		}
		if err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", text, err))
		}
		plans = append(plans, followed.Plans...)
	}
	return plans, problems
}

// rebuildObject returns the plan object with the newest valid plan of each model of the fleet.
func rebuildObject(plans []policies.Plan, fleet wiring.Fleet) (o store.Object) {
	newest := make(map[string]policies.Plan)
	for _, p := range plans {
		if p.Validate() == nil && p.Epoch <= store.MaxEpoch && p.Epoch > newest[p.Model].Epoch {
			newest[p.Model] = p
		}
	}
	for _, m := range fleet.Fleet.Models {
		if p, ok := newest[m.Name]; ok {
			o.Plans = append(o.Plans, p)
			o.Epoch = max(o.Epoch, p.Epoch)
			o.Reasons = append(o.Reasons, store.Reason{Model: p.Model, Epoch: p.Epoch, At: time.Now().UTC(), Text: "rebuilt by \"cascade plan repair\""})
		}
	}
	return o
}
