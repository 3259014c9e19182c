package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/control"
)

// slotFlags are the flags of commands that change slots of a fleet.
type slotFlags struct {
	controlFlags
	goal, scope, by string
	permille        int
	generation      uint64
}

func (o *slotFlags) flags(c *cobra.Command) {
	o.controlFlags.flags(c)
	operatorFlag(c, &o.by)
}

// canary adds the flags for the size of a canary.
func (o *slotFlags) canary(c *cobra.Command) {
	c.Flags().IntVar(&o.permille, "permille", 0, "largest share of a canary, in 1/1000 of the requests, for kinds that decide for one request; 0: 10")
	c.Flags().StringVar(&o.scope, "scope", "", "where it decides first, for kinds that decide for many requests: a model (partition, guard) or a host (refine)")
}

// share returns the permille for a goal, or its default.
func (o *slotFlags) share(kinds []string, goal string) int {
	if o.permille == 0 && goal == lifecycle.ToCanary.String() && len(kinds) > 0 && lifecycle.Kind(kinds[0]).PerRequest() {
		return 10
	}
	return o.permille
}

// promotionGoals are the goals of a candidate, in order.
var promotionGoals = []lifecycle.Goal{lifecycle.ToWarm, lifecycle.ToShadow, lifecycle.ToCanary, lifecycle.ToActive}

func newPolicyPromote(s *settings) *cobra.Command {
	o := &slotFlags{}
	c := &cobra.Command{
		Use:   "promote SLOT...",
		Short: "Promote the candidate of a slot",
		Long: `Promote raises the goal of a slot's candidate by one step, or to --to: from shadow to canary,
from canary to active. It still has to pass the gate of each step: a
module in canary answers 1, then 10, then 100 of 1000 requests, up to --permille, and
waits for its calls in a step that is not the last for no longer than 2 minutes; one
that decides for many requests answers for --scope first, and needs it until it is active.
When all hosts run it, it is stable: the fleet runs it, and a restart begins with it.

"--to shadow" takes it back from a canary, or promotes it from warm: it answers recorded
calls, and the answers are only compared. "cascade policy push" begins with shadow.

Promote refuses a module that the status says "would not be promoted"; the module stays in
shadow. The site's rules apply. "--to stable" is the step without any gate.`,
		Example: `  cascade policy promote bid-select                 # from shadow to a canary of 10 ‰
  cascade policy promote bid-select --permille 100
  cascade policy promote bid-select --to active
  cascade policy promote bid-select --to shadow    # it stops deciding at once
  cascade policy promote refine --scope rack-7`,
		Args: requireSlots,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.setGoal(cmd, o, args)
		},
	}
	o.flags(c)
	o.canary(c)
	c.Flags().StringVar(&o.goal, "to", "", "how far: shadow, canary, active or stable; empty: one step")
	c.Flags().Uint64Var(&o.generation, "generation", 0, "generation of the candidate; 0: any")
	cli.CompleteFrom(c, "to", []string{"shadow", "canary", "active", "stable"})
	return c
}

func newPolicyRollback(s *settings) *cobra.Command {
	o := &slotFlags{}
	var reason string
	c := &cobra.Command{
		Use:   "rollback SLOT...",
		Short: "Roll back the newest module of a slot in the whole fleet",
		Long: `Rollback ends the candidate of the slots; where there is none, it replaces the module that
the fleet runs by the previous one, or by the built-in policy. Hosts keep the previous one
warm: it decides as soon as they get the change. A generation that was rolled back never
runs again: to run the module again, sign it again, which gives it a new generation.`,
		Example: `  cascade policy rollback bid-select --reason "sends everything to r3"
  cascade policy rollback bid-quote bid-select`,
		Args: requireSlots,
		RunE: func(cmd *cobra.Command, args []string) error {
			base, err := o.baseURL(cmd)
			if err != nil {
				return err
			}
			q := o.query(args)
			q.Set("reason", reason)
			return show(cmd.Context(), s, controlRequest{base: base, method: http.MethodPost, path: "policies/rollback", query: q}, fleetview.WriteGoals)
		},
	}
	o.flags(c)
	c.Flags().StringVar(&reason, "reason", "", "why, for the status")
	c.Flags().Uint64Var(&o.generation, "generation", 0, "generation to roll back; 0: the newest")
	return c
}

// query returns the query of a change of slots.
func (o *slotFlags) query(kinds []string) url.Values {
	q := url.Values{"slot": kinds, "by": {o.by}}
	if o.generation != 0 {
		q.Set("generation", strconv.FormatUint(o.generation, 10))
	}
	return q
}

// setGoal sets the goal of the candidates.
func (s *settings) setGoal(cmd *cobra.Command, o *slotFlags, kinds []string) error {
	base, err := o.baseURL(cmd)
	if err != nil {
		return err
	}
	if o.goal == "" {
		if err := o.nextGoal(cmd.Context(), base, kinds); err != nil {
			return err
		}
	}
	q := o.query(kinds)
	q.Set("goal", o.goal)
	q.Set("scope", o.scope)
	if n := o.share(kinds, o.goal); n != 0 {
		q.Set("permille", strconv.Itoa(n))
	}
	return show(cmd.Context(), s, controlRequest{base: base, method: http.MethodPost, path: "policies/goal", query: q}, fleetview.WriteGoals)
}

// nextGoal sets the goal after the present one, which must be the same in all the slots. A larger
// share is a separate step.
func (o *slotFlags) nextGoal(ctx context.Context, base *url.URL, kinds []string) error {
	now, err := fetch[control.Policies](ctx, controlRequest{base: base, path: "policies", query: url.Values{"slot": kinds}})
	if err != nil {
		return err
	}
	if !now.Enabled {
		return fmt.Errorf("policies are off: give the control plane the keys that modules must be signed with (policies.keys)")
	}
	goals := make(map[lifecycle.Goal]bool)
	for _, p := range now.Slots {
		if p.Candidate == nil {
			return fmt.Errorf("slot %s has no candidate; \"cascade policy push\" adds one", p.Slot)
		}
		goals[p.Candidate.Goal] = true
		if o.scope == "" {
			o.scope = p.Candidate.Scope
		}
	}
	if len(goals) != 1 {
		return fmt.Errorf("the %d slots have different goals: set the goal with --to", len(goals))
	}
	for i, g := range promotionGoals[:len(promotionGoals)-1] {
		if goals[g] {
			o.goal = promotionGoals[i+1].String()
			if g == lifecycle.ToCanary && o.permille != 0 {
				o.goal = lifecycle.ToCanary.String()
			}
		}
	}
	if o.goal == "" {
		return fmt.Errorf("its goal is already active: see \"cascade policy status\" for what it waits for")
	}
	return nil
}

// requireSlots requires the names of slots.
func requireSlots(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.Usagef(c, "name the slot, one of %q", lifecycle.KindNames())
	}
	for _, a := range args {
		if !lifecycle.Kind(a).Known() {
			return cli.Usagef(c, "%q is not a slot: must be one of %q", a, lifecycle.KindNames())
		}
	}
	return nil
}
