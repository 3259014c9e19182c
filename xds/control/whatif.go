package control

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	planning "github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// Mixes are request mixes by name. They are safe for concurrent use.
type Mixes interface {
	Names() []string
	// Flow returns the flow of a mix at one request per second, by the given edges, without requests
	// that are longer than context. It may take a fraction of a second, and fails for an unknown name.
	Flow(name string, context policies.Tokens, edges []policies.Tokens) (policies.Flow, error)
}

// WhatIf implements console.Source: it asks the planner of the fleet, for the traffic and the
// replicas of the question. The planner takes milliseconds (BENCHMARKS.md); between its steps ctx
// is checked.
func (s consoleSource) WhatIf(ctx context.Context, q console.Question) (console.Answer, error) {
	model, rules, err := s.model(q.Model)
	if err != nil {
		return console.Answer{}, err
	}
	present := model.Workload
	w, traffic, err := s.workload(q, present, rules.Context)
	if err != nil {
		return console.Answer{}, err
	}
	if err := ctx.Err(); err != nil {
		return console.Answer{}, err
	}
	policy, err := planning.PolicyNamed(s.c.cfg.Policy)
	if err != nil {
		return console.Answer{}, err
	}
	begin := time.Now()
	preview, err := policy.Preview(w, s.c.cfg.IterationRatio)
	elapsed := time.Since(begin)
	switch {
	case errors.Is(err, policies.ErrInfeasible):
		return console.Answer{}, infeasibleQuestion(q, w)
	case errors.Is(err, planning.ErrNeedsSnapshot):
		return console.Answer{}, &console.FieldError{Text: "the policy \"paper\" plans on the requests in flight, which a what-if does not have; use \"cascade plan --policy paper\""}
	case err != nil:
		return console.Answer{}, err
	}
	out := answerOf(preview, w)
	out.Model, out.Policy, out.Traffic, out.Elapsed = model.Name, s.c.cfg.Policy, traffic, elapsed.Seconds()
	if out.Policy == planning.PolicyDefault {
		out.Slack = partition.DefaultSlack
	}
	if len(model.Plan.Stages) > 0 && arrivalRate(present.Flow) > 0 {
		if now, err := policy.Price(present, model.Plan); err == nil {
			cost := rounded(now.Cost)
			out.Present = &cost
		}
	}
	return out, ctx.Err()
}

// model returns a model of the fleet and its rules. "" is the only one.
func (s consoleSource) model(name string) (*fleet.ModelState, fleet.Model, error) {
	snapshot := s.c.fleet.Snapshot()
	if snapshot == nil {
		return nil, fleet.Model{}, &console.FieldError{Text: "the control plane is starting; try again in a second"}
	}
	if name == "" && len(snapshot.Models) == 1 {
		name = snapshot.Models[0].Name
	}
	i := slices.IndexFunc(s.c.cfg.Models, func(m fleet.Model) bool { return m.Name == name })
	model := snapshot.Model(name)
	if i < 0 || model == nil {
		return nil, fleet.Model{}, &console.FieldError{Field: "model", Text: fmt.Sprintf("%.60q: unknown", name)}
	}
	return model, s.c.cfg.Models[i], nil
}

// workload returns the workload of a question, and its traffic in words.
func (s consoleSource) workload(q console.Question, present policies.Workload, context policies.Tokens) (policies.Workload, string, error) {
	w := present
	if q.Replicas > 0 {
		w.Replicas = q.Replicas
	}
	if q.Iteration > 0 {
		w.Limits.Iteration = q.Iteration
	}
	if w.Replicas == 0 || w.Capacity.KV == 0 {
		return w, "", &console.FieldError{Text: "no replica of the model is in a stage, so that the capacity of one is unknown; start one, or use \"cascade plan\""}
	}
	observed, traffic := arrivalRate(present.Flow), "traffic of the last planning period"
	if q.Mix != "" {
		unit, err := s.mix(q.Mix, context, present.Flow.Edges)
		if err != nil {
			return w, "", err
		}
		w.Flow, traffic, w.Snapshot = unit, "mix "+q.Mix, nil
	}
	rate := q.Rate
	if rate == 0 {
		rate = observed
	}
	base := arrivalRate(w.Flow)
	switch {
	case base == 0:
		text := "no traffic has been counted yet"
		if names := s.mixes(); len(names) > 0 {
			text += "; choose one of " + strings.Join(names, ", ")
		}
		return w, "", &console.FieldError{Field: "mix", Text: text}
	case rate == 0:
		return w, "", &console.FieldError{Field: "rate", Text: "no traffic has been counted yet; give the requests/s"}
	case rate != base:
		w.Flow, w.Snapshot = planning.ScaleFlow(w, rate/base).Flow, nil
	}
	return w, traffic, nil
}

func (s consoleSource) mix(name string, context policies.Tokens, edges []policies.Tokens) (policies.Flow, error) {
	if !slices.Contains(s.mixes(), name) {
		return policies.Flow{}, &console.FieldError{Field: "mix", Text: fmt.Sprintf("%.40q: must be empty or one of %s", name, strings.Join(s.mixes(), ", "))}
	}
	flow, err := s.c.cfg.Mixes.Flow(name, context, edges)
	if err != nil {
		return flow, &console.FieldError{Field: "mix", Text: err.Error()}
	}
	return flow, nil
}

// infeasibleQuestion returns why there is no plan, and the fields that could change it.
func infeasibleQuestion(q console.Question, w policies.Workload) error {
	text := fmt.Sprintf("%d cannot carry %s requests/s of this traffic", w.Replicas, strconv.FormatFloat(arrivalRate(w.Flow), 'g', 3, 64))
	if w.Limits.Iteration > 0 {
		text += fmt.Sprintf(" within iterations of %s ms", strconv.FormatFloat(w.Limits.Iteration*1e3, 'g', 3, 64))
	}
	field := "replicas"
	if q.Iteration > 0 {
		field = "iteration_ms"
		text = strconv.FormatFloat(q.Iteration*1e3, 'g', 4, 64) + ": " + strconv.Itoa(w.Replicas) + " replicas" + strings.TrimPrefix(text, strconv.Itoa(w.Replicas))
	}
	return &console.FieldError{Field: field, Text: text + "; add replicas, lower the rate or raise the bound"}
}

// answerOf returns the proposal of a preview, with each stage's share of the work.
func answerOf(preview planning.Preview, w policies.Workload) console.Answer {
	p := preview.Proposal
	out := console.Answer{Replicas: w.Replicas, Rate: rounded(arrivalRate(w.Flow)), Iteration: rounded(w.Limits.Iteration), Cost: rounded(p.Cost), Exact: p.Exact, Stages: []console.Stage{}}
	if !math.IsInf(p.OneStage, 1) {
		one := rounded(p.OneStage)
		out.OneStage = &one
	}
	for i, n := range p.Counts {
		low, high := policies.Tokens(0), policies.Unbounded
		if i > 0 {
			low = p.Cuts[i-1]
		}
		if i < len(p.Cuts) {
			high = p.Cuts[i]
		}
		stage := consoleStageOf(i, policies.Stage{Low: low, High: high})
		stage.Replicas = n
		setReason(&stage, ReasonOf(preview.Reasons[i]))
		stage.Busy = rounded(busyReplicas(w, low, high) / float64(n))
		if p.Iterations != nil {
			stage.Iteration = rounded(p.Iterations[i])
		}
		out.Stages = append(out.Stages, stage)
	}
	return out
}

// busyReplicas returns how many replicas the work of a range of lengths occupies, besides the fixed
// cost of iterations.
func busyReplicas(w policies.Workload, low, high policies.Tokens) (sum float64) {
	f, c := w.Flow, w.Cost
	for b, e := range f.Edges {
		if e >= low && e < high {
			sum += c.D1*f.Tokens[b] + c.D4*f.Reads[b] + c.D2*f.Prefill[b] + c.D3*f.Prefill2[b]
		}
	}
	return sum
}
