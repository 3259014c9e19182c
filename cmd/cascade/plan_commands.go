package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
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
			body, err := request(cmd.Context(), base, http.MethodGet, "plan/history", q)
			if err != nil {
				return err
			}
			return printResponse(s, base, body, writePlans)
		},
	}
	f.flags(c)
	return c
}

// planCommandFlags are the flags of a command that changes a model's plan.
type planCommandFlags struct {
	controlFlags
	by string
}

func (p *planCommandFlags) flags(c *cobra.Command) {
	p.controlFlags.flags(c)
	c.Flags().StringVar(&p.by, "by", currentUser(), "name of the operator, for the history")
	c.Flags().Lookup("by").DefValue = "<user>@<host name>"
}

// currentUser returns the user's name for the plan history.
func currentUser() string {
	host, _ := os.Hostname()
	return cmp.Or(os.Getenv("USER"), os.Getenv("LOGNAME"), fmt.Sprint("uid ", os.Getuid())) + "@" + host
}

// post posts the change and returns the response of the control plane.
func (p *planCommandFlags) post(ctx context.Context, cmd *cobra.Command, order, model string, q url.Values) (*url.URL, []byte, error) {
	base, err := p.baseURL(cmd)
	if err != nil {
		return nil, nil, err
	}
	q.Set("model", model)
	q.Set("by", p.by)
	body, err := request(ctx, base, http.MethodPost, "plan/"+order, q)
	return base, body, err
}

// newPlanPin is "cascade plan pin": it keeps a plan.
func newPlanPin(s *settings) *cobra.Command {
	p := &planCommandFlags{}
	var epoch uint64
	c := &cobra.Command{
		Use:   "pin MODEL",
		Short: "Keep a model's plan until it is unpinned",
		Long: `Pin keeps the boundaries of the plan in force, or with --epoch those of an earlier
one, which comes into force again under a new epoch. Replicas that die, join or are
drained still change who serves which stage, and so stages may merge; the pinned
boundaries come back when there are replicas for them. Restarts keep the pin.`,
		Example: `  cascade plan pin llama-3.1-8b
  cascade plan pin llama-3.1-8b --epoch 12      # "cascade plan history" lists the epochs
  cascade plan unpin llama-3.1-8b`,
		Args: atMostOneModel,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			if cmd.Flags().Changed("epoch") {
				q.Set("epoch", strconv.FormatUint(epoch, 10))
			}
			return s.changePlan(cmd, p, "pin", args[0], q)
		},
	}
	p.flags(c)
	c.Flags().Uint64Var(&epoch, "epoch", 0, "epoch of the plan to keep, instead of the one in force")
	return c
}

// newPlanUnpin is "cascade plan unpin": it lets the planner change a plan again.
func newPlanUnpin(s *settings) *cobra.Command {
	p := &planCommandFlags{}
	c := &cobra.Command{
		Use:   "unpin MODEL",
		Short: "Let the planner change a pinned plan again",
		Long: `Unpin ends what "cascade plan pin" began. The plan stays in force until the planner
finds a better one. For a model that is not pinned it does nothing.`,
		Example: `  cascade plan unpin llama-3.1-8b`,
		Args:    atMostOneModel,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.changePlan(cmd, p, "unpin", args[0], url.Values{})
		},
	}
	p.flags(c)
	return c
}

// newPlanRollback is "cascade plan rollback": it returns to an earlier plan.
func newPlanRollback(s *settings) *cobra.Command {
	p := &planCommandFlags{}
	var to uint64
	var pin bool
	c := &cobra.Command{
		Use:   "rollback MODEL",
		Short: "Put a model's earlier plan in force again",
		Long: `Rollback divides the lengths as an earlier plan did, the one before the plan in force
or that of --to, among the replicas that there are now, under a new epoch. Running
requests stay where they are.

New plans are then delayed for as long as after an automatic rollback: one minute, and twice as long each time, up to 16 minutes, until a plan
has lasted. With --pin the plan stays until "cascade plan unpin".`,
		Example: `  cascade plan rollback llama-3.1-8b
  cascade plan rollback llama-3.1-8b --to 12 --pin`,
		Args: atMostOneModel,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			if cmd.Flags().Changed("to") {
				q.Set("epoch", strconv.FormatUint(to, 10))
			}
			if pin {
				q.Set("pin", "1")
			}
			return s.changePlan(cmd, p, "rollback", args[0], q)
		},
	}
	p.flags(c)
	c.Flags().Uint64Var(&to, "to", 0, "epoch of the plan to go back to, instead of the last one")
	c.Flags().BoolVar(&pin, "pin", false, "keep it until it is unpinned")
	return c
}

// atMostOneModel requires the name of a model.
func atMostOneModel(c *cobra.Command, args []string) error {
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

// changePlan changes a plan and prints the plan in force afterwards.
func (s *settings) changePlan(cmd *cobra.Command, p *planCommandFlags, order, model string, q url.Values) error {
	base, body, err := p.post(cmd.Context(), cmd, order, model, q)
	if err != nil {
		return fmt.Errorf("%s %s: %w", order, model, err)
	}
	return printResponse(s, base, body, func(w io.Writer, plans control.PlanHistory) error {
		for i := len(plans.Decisions) - 1; i >= 0; i-- {
			if d := plans.Decisions[i]; len(d.Stages) > 0 {
				fmt.Fprintf(w, "%s: epoch %d, %s%s\n", model, d.Epoch, d.Reason, formatStages(d.Stages))
				break
			}
		}
		for _, pin := range plans.Pins {
			fmt.Fprintf(w, "%s: pinned to the plan of epoch %d by %s; \"cascade plan unpin %s\" ends that\n", pin.Model, pin.Epoch, actorName(pin.By), pin.Model)
		}
		return nil
	})
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
		t.Rows = append(t.Rows, []string{when, d.Model, fmt.Sprint(d.Epoch), decisionText(d.Decision), percent(d.Gain), iterations(d), d.By, why})
	}
	if len(p.Decisions) == 0 {
		t.Notes = []string{"No decision yet."}
	}
	for _, pin := range p.Pins {
		t.Notes = append(t.Notes, fmt.Sprintf("%s is pinned to the plan of epoch %d since %s by %s.", pin.Model, pin.Epoch, pin.At.Local().Format(time.DateTime), actorName(pin.By)))
	}
	if err := t.Text(w); err != nil {
		return err
	}
	if len(p.History) == 0 {
		return nil
	}
	past := report.Table{Title: "earlier plans", Header: []string{"model", "epoch", "boundaries", "replicas"}, Left: 4}
	for _, old := range p.History {
		past.Rows = append(past.Rows, []string{old.Model, fmt.Sprint(old.Epoch), cutList(old.Cuts), join(old.Counts, "+")})
	}
	_, err := fmt.Fprintln(w)
	return errors.Join(err, past.Text(w))
}

// decisionText returns the text for a kind of decision.
func decisionText(word string) string {
	if word == "" {
		return "changed"
	}
	return word
}

// actorName returns the name of the user or component that made a change.
func actorName(by string) string {
	if by == "" {
		return "an operator"
	}
	return by
}

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
