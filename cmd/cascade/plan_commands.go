package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
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
		Args: cli.AtMost(1, "MODEL"),
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
				return fleetview.WriteHistory(w, p)
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
// afterwards. query adds what its flags say, and returns the name of the order.
func newPlanChange(s *settings, c *cobra.Command, query func(cmd *cobra.Command, q url.Values) string) *cobra.Command {
	f, by := &controlFlags{}, ""
	c.Args = requireModel
	c.RunE = func(cmd *cobra.Command, args []string) error {
		base, err := f.baseURL(cmd)
		if err != nil {
			return err
		}
		q := url.Values{"model": args, "by": {by}}
		order := query(cmd, q)
		r := controlRequest{base: base, method: http.MethodPost, path: "plan/" + order, query: q}
		if err := show(cmd.Context(), s, r, func(w io.Writer, p control.PlanHistory) error { return fleetview.WriteChangedPlan(w, args[0], p) }); err != nil {
			return fmt.Errorf("%s %s: %w", order, args[0], err)
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

// newPlanPin is "cascade plan pin": it keeps a plan, or lets the planner change it again.
func newPlanPin(s *settings) *cobra.Command {
	undo := false
	c := newPlanChange(s, &cobra.Command{
		Use:   "pin MODEL",
		Short: "Keep a model's plan; --undo lets the planner change it again",
		Long: `Pin keeps the boundaries of the plan in force, or with --epoch those of an earlier
one, which comes into force again under a new epoch. Replicas that die, join or are
drained still change who serves which stage, and so stages may merge; the pinned
boundaries come back when there are replicas for them. Restarts keep the pin.

With --undo the plan stays in force until the planner finds a better one. For a model
that is not pinned it does nothing.`,
		Example: `  cascade plan pin llama-3.1-8b
  cascade plan pin llama-3.1-8b --epoch 12      # "cascade plan history" lists the epochs
  cascade plan pin llama-3.1-8b --undo`,
	}, func(cmd *cobra.Command, q url.Values) string {
		setEpoch(cmd, "epoch", q)
		if undo {
			return "unpin"
		}
		return "pin"
	})
	c.Flags().Uint64("epoch", 0, "epoch of the plan to keep, instead of the one in force")
	c.Flags().BoolVar(&undo, "undo", false, "let the planner change the pinned plan again")
	c.PreRunE = func(cmd *cobra.Command, _ []string) error { return cli.ExcludeFlags(cmd, "epoch", "undo") }
	return c
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
stays until "cascade plan pin --undo".`,
		Example: `  cascade plan rollback llama-3.1-8b
  cascade plan rollback llama-3.1-8b --to 12 --pin`,
	}, func(cmd *cobra.Command, q url.Values) string {
		setEpoch(cmd, "to", q)
		if pin {
			q.Set("pin", "1")
		}
		return "rollback"
	})
	c.Flags().Uint64("to", 0, "epoch of the plan to go back to, instead of the last one")
	c.Flags().BoolVar(&pin, "pin", false, "keep it until it is unpinned")
	return c
}

// requireModel requires the name of a model.
func requireModel(c *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return cli.Usagef(c, "name one model; \"cascade status\" lists them")
	}
	return nil
}
