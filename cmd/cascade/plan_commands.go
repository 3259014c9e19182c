package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// newPlanHistory is "cascade plan history": it lists the decisions about plans.
func newPlanHistory(s *settings) *cobra.Command {
	f := &controlFlags{}
	c := &cobra.Command{
		Use:   "history [MODEL]",
		Short: "Show the decisions about plans, and their reasons",
		Long: `History shows what a control plane has decided about the plans of its models, oldest
first: plans that came into force (adopted, repaired, refined, rolled back), pins, and
decisions to keep the plan in force. Repeated decisions to keep a plan share a line.

The gain is what the change was predicted to save. The iteration is what was measured,
against what was predicted for the flow of that time, in the stage where they differed
most: a plan that is slower by more than 25 % three times in a row, and no better than
one stage, is rolled back.

Below are the plans that a rollback can restore: the last 8 of each model that divided the
lengths differently. The history outlives restarts.`,
		Example: `  cascade plan history
  cascade plan history llama-3.1-8b --json | jq '.decisions[-1]'`,
		Args: atMost(1, "MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			base, err := f.baseURL(cmd)
			if err != nil {
				return err
			}
			q := url.Values{}
			if len(args) > 0 {
				q.Set("model", args[0])
			}
			r := controlRequest{base: base, path: "plan/history", query: q}
			p, err := showDocument(cmd.Context(), s, r, func(w io.Writer, p control.PlanHistory) error {
				if err := checkKnown(args, p); err != nil {
					return err
				}
				return writePlans(w, p)
			})
			if err != nil {
				return err
			}
			return checkKnown(args, p) // again for --json, which writes no text
		},
	}
	f.flags(c)
	return c
}

// checkKnown returns an error if the history of the model in args is empty.
func checkKnown(args []string, p control.PlanHistory) error {
	if len(args) > 0 && len(p.Decisions)+len(p.History) == 0 {
		return fmt.Errorf("model %q: no plan of it is known; \"cascade status\" lists the models", args[0])
	}
	return nil
}

// newPlanChange completes a command that changes a model's plan and prints the plan in force
// afterwards. query adds what its flags say; nil adds nothing.
func newPlanChange(s *settings, c *cobra.Command, query func(cmd *cobra.Command, q url.Values)) *cobra.Command {
	f, by := &controlFlags{}, ""
	c.Args = requireModel
	c.RunE = func(cmd *cobra.Command, args []string) error {
		base, err := f.baseURL(cmd)
		if err != nil {
			return err
		}
		q := url.Values{"model": args, "by": {by}}
		if query != nil {
			query(cmd, q)
		}
		r := controlRequest{base: base, method: http.MethodPost, path: "plan/" + c.Name(), query: q}
		if err := show(cmd.Context(), s, r, func(w io.Writer, p control.PlanHistory) error { return writeChangedPlan(w, args[0], p) }); err != nil {
			return fmt.Errorf("%s %s: %w", c.Name(), args[0], err)
		}
		return nil
	}
	f.flags(c)
	operatorFlag(c, &by)
	return c
}

// setEpoch adds the epoch of a flag, if it is set.
func setEpoch(cmd *cobra.Command, flag string, q url.Values) {
	if f := cmd.Flags().Lookup(flag); f.Changed {
		q.Set("epoch", f.Value.String())
	}
}

// newPlanPin is "cascade plan pin": it keeps a plan.
func newPlanPin(s *settings) *cobra.Command {
	c := newPlanChange(s, &cobra.Command{
		Use:   "pin MODEL",
		Short: "Keep a model's plan until it is unpinned",
		Long: `Pin keeps the boundaries of the plan in force, or with --epoch those of an earlier
one, which comes into force again under a new epoch. Replicas that die, join or are
drained still change who serves which stage, and so stages may merge; the pinned
boundaries come back when there are replicas for them. Restarts keep the pin.`,
		Example: `  cascade plan pin llama-3.1-8b
  cascade plan pin llama-3.1-8b --epoch 12      # "cascade plan history" lists the epochs
  cascade plan unpin llama-3.1-8b`,
	}, func(cmd *cobra.Command, q url.Values) { setEpoch(cmd, "epoch", q) })
	c.Flags().Uint64("epoch", 0, "epoch of the plan to keep, instead of the one in force")
	return c
}

// newPlanUnpin is "cascade plan unpin": it lets the planner change a plan again.
func newPlanUnpin(s *settings) *cobra.Command {
	return newPlanChange(s, &cobra.Command{
		Use:   "unpin MODEL",
		Short: "Let the planner change a pinned plan again",
		Long: `Unpin ends what "cascade plan pin" began. The plan stays in force until the planner
finds a better one. For a model that is not pinned it does nothing.`,
		Example: `  cascade plan unpin llama-3.1-8b`,
	}, nil)
}

// newPlanRollback is "cascade plan rollback": it returns to an earlier plan.
func newPlanRollback(s *settings) *cobra.Command {
	pin := false
	c := newPlanChange(s, &cobra.Command{
		Use:   "rollback MODEL",
		Short: "Put a model's earlier plan in force again",
		Long: `Rollback divides the lengths as an earlier plan did, the one before the plan in force
or that of --to, among the replicas that there are now, under a new epoch. Running
requests stay where they are.

New plans are then delayed for as long as after an automatic rollback: one minute, and
twice as long each time, up to 16 minutes, until a plan has lasted. With --pin the plan
stays until "cascade plan unpin".`,
		Example: `  cascade plan rollback llama-3.1-8b
  cascade plan rollback llama-3.1-8b --to 12 --pin`,
	}, func(cmd *cobra.Command, q url.Values) {
		setEpoch(cmd, "to", q)
		if pin {
			q.Set("pin", "1")
		}
	})
	c.Flags().Uint64("to", 0, "epoch of the plan to go back to, instead of the last one")
	c.Flags().BoolVar(&pin, "pin", false, "keep it until it is unpinned")
	return c
}

// requireModel requires the name of a model.
func requireModel(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usageErrorf(c, "name one model; \"cascade status\" lists them")
	}
	return nil
}

// atMost allows up to n arguments.
func atMost(n int, what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return usageErrorf(c, "give at most %d %s", n, what)
		}
		return nil
	}
}

// writeChangedPlan prints the plan of a model in force after a change.
func writeChangedPlan(w io.Writer, model string, plans control.PlanHistory) error {
	for _, d := range slices.Backward(plans.Decisions) {
		if len(d.Stages) > 0 {
			fmt.Fprintf(w, "%s: epoch %d, %s%s\n", model, d.Epoch, d.Reason, formatStages(d.Stages))
			break
		}
	}
	for _, pin := range plans.Pins {
		fmt.Fprintf(w, "%s: pinned to the plan of epoch %d by %s; \"cascade plan unpin %s\" ends that\n", pin.Model, pin.Epoch, actorName(pin.By), pin.Model)
	}
	return nil
}

// writePlans prints the history of plans as text.
func writePlans(w io.Writer, p control.PlanHistory) error {
	t := report.Table{Title: "decisions", Header: []string{"time", "model", "epoch", "decision", "gain", "iteration", "by", "why and what"}, Left: 8}
	for _, d := range p.Decisions {
		when := d.Time.Local().Format(time.DateTime)
		why := d.Reason + formatStages(d.Stages)
		if d.Until != nil && d.Times > 1 {
			why += fmt.Sprintf("; %d times until %s", d.Times, d.Until.Local().Format(time.TimeOnly))
		}
		t.Rows = append(t.Rows, []string{when, d.Model, fmt.Sprint(d.Epoch), cmp.Or(d.Decision, "changed"), percent(d.Gain), iterations(d), d.By, why})
	}
	if len(p.Decisions) == 0 {
		t.Notes = []string{"No decision yet."}
	}
	for _, pin := range p.Pins {
		t.Notes = append(t.Notes, fmt.Sprintf("%s is pinned to the plan of epoch %d since %s by %s.", pin.Model, pin.Epoch, pin.At.Local().Format(time.DateTime), actorName(pin.By)))
	}
	if len(p.History) == 0 {
		return t.Text(w)
	}
	past := report.Table{Title: "earlier plans", Header: []string{"model", "epoch", "boundaries", "replicas"}, Left: 4}
	for _, old := range p.History {
		past.Rows = append(past.Rows, []string{old.Model, fmt.Sprint(old.Epoch), cutList(old.Cuts), join(old.Counts, "+")})
	}
	return writeTables(w, t, past)
}

// actorName returns the name of the user or component that made a change.
func actorName(by string) string { return cmp.Or(by, "an operator") }

func percent(share float64) string {
	if share == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*share)
}

// iterations compares the measured iteration time with the predicted one.
func iterations(d control.Decision) string {
	if d.Observed == 0 || d.Predicted == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f ms for %.1f", d.Observed*1e3, d.Predicted*1e3)
}

// formatStages returns a plan in one line: its boundaries and the replicas
// between them.
func formatStages(stages []control.Stage) string {
	if len(stages) == 0 {
		return ""
	}
	counts := make([]int, len(stages))
	var cuts []policies.Tokens
	for i, st := range stages {
		counts[i] = len(st.Replicas)
		if i > 0 {
			cuts = append(cuts, st.Low)
		}
	}
	if len(cuts) == 0 {
		return fmt.Sprintf(": one stage of %d", counts[0])
	}
	return fmt.Sprintf(": %s replicas, cut at %s", join(counts, "+"), cutList(cuts))
}

func cutList(cuts []policies.Tokens) string {
	if len(cuts) == 0 {
		return "none"
	}
	return join(cuts, ", ")
}

func join[T any](list []T, sep string) string {
	words := make([]string, len(list))
	for i, x := range list {
		words[i] = fmt.Sprint(x)
	}
	return strings.Join(words, sep)
}
