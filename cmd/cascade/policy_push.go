package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// pushRequest is a module to push to the slots of a fleet.
type pushRequest struct {
	slots                            []string
	goal, scope, by                  string
	permille                         int
	module, signature, configuration []byte
}

// request returns the request that pushes the module.
func (p pushRequest) request(base *url.URL) (controlRequest, error) {
	q := url.Values{"slot": p.slots, "goal": {p.goal}, "by": {p.by}}
	if p.permille != 0 {
		q.Set("permille", strconv.Itoa(p.permille))
	}
	if p.scope != "" {
		q.Set("scope", p.scope)
	}
	body, err := json.Marshal(struct {
		Module        []byte `json:"module"`
		Signature     []byte `json:"signature"`
		Configuration []byte `json:"configuration,omitempty"`
	}{p.module, p.signature, p.configuration})
	return controlRequest{base: base, method: http.MethodPost, path: "policies/push", query: q, document: body}, err
}

// check reports what every control plane would reject, before the module is
// sent.
func (p pushRequest) check(cmd *cobra.Command) error {
	if err := requireSlots(cmd, p.slots); err != nil {
		return err
	}
	for _, slot := range p.slots {
		scope := p.scope
		if scope == "" && !lifecycle.Kind(slot).PerRequest() {
			scope = "any" // the control plane checks it
		}
		goal, err := lifecycle.ParseGoal(p.goal)
		if err == nil {
			err = policyslots.CheckGoal(lifecycle.Kind(slot), goal, p.permille, scope)
		}
		if err != nil {
			return usageErrorf(cmd, "--slot %s: --%v", slot, err)
		}
	}
	return nil
}

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
	c.Flags().StringVar(&o.scope, "scope", "", "where it decides first, for kinds that decide for many requests: a model (partition, guard) or a node (refine)")
}

// share returns the permille for a goal, or its default.
func (o *slotFlags) share(kinds []string, goal string) int {
	if o.permille == 0 && goal == lifecycle.ToCanary.String() && len(kinds) > 0 && lifecycle.Kind(kinds[0]).PerRequest() {
		return 10
	}
	return o.permille
}

func newPolicyPush(s *settings) *cobra.Command {
	o, b := &slotFlags{}, &policyBuildFlags{}
	var kinds []string
	var signature, config string
	c := &cobra.Command{
		Use:   "push FILE|DIR",
		Short: "Push a signed module to a running fleet, in shadow first",
		Long: `Push sends FILE and FILE.sig to the control plane, which checks the signatures, the
exports and the site's rules, stores the module, and publishes it to every host by xDS.
Each host verifies the signatures again, compiles the module without delaying calls, and
promotes it as far as --goal says:

  warm     compiled only
  shadow   answers recorded calls; the answers are only compared, and the status counts differences
  canary   answers a share of the requests (--permille), or for one --scope
  active   answers all of them, once it has passed the gates
  stable   answers at once, without gates: when you know it from another fleet

Each host rolls it back when it traps, runs out of fuel or breaks a rule,
or on its way beyond shadow when too many of its answers are worse than those of the
policy in force; then the whole fleet rolls back. With --goal shadow a worse one stays in shadow
and can be observed: the status says "would not be promoted", and by how many of its answers. "cascade policy
promote" raises its goal, "cascade policy rollback" ends it. Without modules, and whenever
one fails, the built-in policies decide.`,
		Example: `  cascade policy push my-refiner.wasm
  cascade policy push bids.wasm --slot bid-select --goal canary --permille 10
  cascade policy push outlier.wasm --configuration outlier.conf --goal stable`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p := pushRequest{slots: kinds, goal: o.goal, scope: o.scope, by: o.by, permille: o.permille}
			path, err := b.module(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if p.module, err = policydev.ReadModule(path); err != nil {
				return err
			}
			if signature == "" {
				signature = path + signatureSuffix
			}
			file, err := readSignature(signature)
			if err != nil {
				return fmt.Errorf("%w; \"cascade policy sign\" creates one", err)
			}
			if p.signature, err = file.Encode(); err != nil {
				return fmt.Errorf("%s: %w", signature, err)
			}
			if p.configuration, err = readConfiguration(config); err != nil {
				return err
			}
			if err := file.Statement.CheckConfiguration(p.configuration); err != nil {
				return err
			}
			if len(kinds) == 0 {
				for _, g := range file.Statement.Grants {
					p.slots = append(p.slots, g.Kind.String())
				}
			}
			p.permille = o.share(p.slots, p.goal)
			if err := p.check(cmd); err != nil {
				return err
			}
			base, err := o.baseURL(cmd)
			if err != nil {
				return err
			}
			r, err := p.request(base)
			if err != nil {
				return err
			}
			return show(cmd.Context(), s, r, writeWanted)
		},
	}
	b.flags(c)
	o.flags(c)
	o.canary(c)
	f := c.Flags()
	f.StringSliceVar(&kinds, "slot", nil, "slots that get it; empty: all that its statement lets it decide")
	f.StringVar(&o.goal, "goal", lifecycle.ToShadow.String(), "how far it may go: warm, shadow, canary, active or stable")
	f.StringVar(&signature, "signature", "", "signature file; empty: FILE.sig")
	f.StringVar(&config, "configuration", "", "file with what the module is configured with: what was signed")
	completeFrom(c, "slot", lifecycle.KindNames())
	completeFrom(c, "goal", lifecycle.GoalNames())
	return c
}

// promotionGoals are the goals of a candidate, in order.
var promotionGoals = []lifecycle.Goal{lifecycle.ToWarm, lifecycle.ToShadow, lifecycle.ToCanary, lifecycle.ToActive}

func newPolicyShadow(s *settings) *cobra.Command {
	o := &slotFlags{}
	c := &cobra.Command{
		Use:   "shadow SLOT...",
		Short: "Restrict the candidate of a slot to recorded calls",
		Long: `Shadow returns the candidates of the slots to shadow, or promotes them there from warm: they
answer recorded calls, and the answers are only compared. A module in canary stops deciding
at once. "cascade policy push" begins with shadow.`,
		Example: `  cascade policy shadow bid-select
  cascade policy status bid-select --watch     # where would it have decided otherwise?`,
		Args: requireSlots,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.goal = lifecycle.ToShadow.String()
			return s.setGoal(cmd, o, args)
		},
	}
	o.flags(c)
	c.Flags().Uint64Var(&o.generation, "generation", 0, "generation of the candidate; 0: any")
	return c
}

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

One that "would not be promoted" by what the status says of it is rejected, and stays in
shadow. The site's rules apply. "--to stable" is the step without any gate.`,
		Example: `  cascade policy promote bid-select                 # from shadow to a canary of 10 ‰
  cascade policy promote bid-select --permille 100
  cascade policy promote bid-select --to active
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
	completeFrom(c, "to", []string{"shadow", "canary", "active", "stable"})
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
			return show(cmd.Context(), s, controlRequest{base: base, method: http.MethodPost, path: "policies/rollback", query: q}, writeWanted)
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
	return show(cmd.Context(), s, controlRequest{base: base, method: http.MethodPost, path: "policies/goal", query: q}, writeWanted)
}

// nextGoal sets the goal after the present one, which must be the same in all the slots. A larger
// share is a separate step.
func (o *slotFlags) nextGoal(ctx context.Context, base *url.URL, kinds []string) error {
	now, err := fetch[control.Policies](ctx, controlRequest{base: base, path: "policies", query: url.Values{"slot": kinds}})
	if err != nil {
		return err
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
		return usageErrorf(c, "name the slot, one of %q", lifecycle.KindNames())
	}
	for _, a := range args {
		if !lifecycle.Kind(a).Known() {
			return usageErrorf(c, "%q is not a slot: must be one of %q", a, lifecycle.KindNames())
		}
	}
	return nil
}
