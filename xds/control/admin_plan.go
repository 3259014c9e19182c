package control

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/store"
)

// maxBy bounds the name of the operator who gives a command, in bytes.
const maxBy = 256

// PlanHistory is what GET /plan/history answers, as JSON, and, for one model,
// every command about its plan. Fields are only ever added.
type PlanHistory struct {
	Time      time.Time      `json:"time"`
	Epoch     policies.Epoch `json:"epoch"` // of the newest plan in force
	Decisions []Decision     `json:"decisions"`
	// History has the plans that may be pinned or rolled back to, oldest first.
	History []FormerPlan `json:"history"`
	Pins    []Pinned     `json:"pins"`
}

// Decision is a decision about a model's plan, including those that kept it.
type Decision struct {
	Time  time.Time      `json:"time"`
	Model string         `json:"model"`
	Epoch policies.Epoch `json:"epoch"` // of the plan in force afterwards
	// Decision is adopted, rolled back, repaired, refined, restated, pinned,
	// unpinned, kept or held off; absent: a change of plan by an earlier
	// version.
	Decision string `json:"decision,omitempty"`
	Reason   string `json:"reason"`
	By       string `json:"by,omitempty"` // an operator or a control plane
	// Gain is predicted, as a share of the previous cost; Predicted and
	// Observed are the iteration times of the stage where they differed most.
	Gain      float64 `json:"gain,omitempty"`
	Predicted float64 `json:"predicted_seconds,omitempty"`
	Observed  float64 `json:"observed_seconds,omitempty"`
	// Times is how often in a row it was decided, the last time at Until.
	Times int       `json:"times,omitempty"`
	Until time.Time `json:"until,omitzero"`
	// Stages is the plan that was decided; absent where no stage changed, or none are known.
	Stages []DecidedStage `json:"stages,omitempty"`
}

// DecidedStage is a stage of a plan that was decided.
type DecidedStage struct {
	Name     string           `json:"name"` // as in cluster names: s0, s1, …
	Low      policies.Tokens  `json:"low"`
	High     *policies.Tokens `json:"high,omitempty"` // the end of [Low, High); absent for the last stage, which is open
	Replicas []DecidedReplica `json:"replicas"`
}

// DecidedReplica is a replica of a DecidedStage, of which the history keeps the id alone.
type DecidedReplica struct {
	ID policies.ReplicaID `json:"id"`
}

// FormerPlan is a plan that was in force.
type FormerPlan struct {
	Model  string            `json:"model"`
	Epoch  policies.Epoch    `json:"epoch"`
	Cuts   []policies.Tokens `json:"cuts"`
	Counts []int             `json:"replicas"` // of each stage
}

// Pinned is a plan that an operator has pinned.
type Pinned struct {
	FormerPlan
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

// Planner says which control plane plans; see fleet.Leadership.
type Planner struct {
	Self   string `json:"self,omitempty"`
	Shared bool   `json:"shared,omitempty"` // with other control planes
	// Holder has the planning lease; absent: none has one in force. LastHolder is the
	// last one that had, and Since the seconds since its lease was renewed, as seen from
	// here.
	Holder     string  `json:"holder,omitempty"`
	LastHolder string  `json:"last_holder,omitempty"`
	Since      float64 `json:"since_seconds,omitempty"`
	Leads      bool    `json:"leads"`
}

func plannerOf(p fleet.Leadership, now time.Time) Planner {
	out := Planner{Self: p.Self, Shared: p.Shared, Holder: p.Holder, LastHolder: p.LastHolder, Leads: p.Leading}
	if p.LastHolder != "" {
		out.Since = max(now.Sub(p.Since).Seconds(), 0)
	}
	return out
}

func decisionOf(c fleetstate.Change) Decision {
	var stages []DecidedStage
	for i, st := range c.Stages {
		s := stageOf(i, st)
		decided := DecidedStage{s.Name, s.Low, s.High, []DecidedReplica{}}
		for _, id := range st.Replicas {
			decided.Replicas = append(decided.Replicas, DecidedReplica{id})
		}
		stages = append(stages, decided)
	}
	return Decision{
		Time: c.Time, Model: c.Model, Epoch: c.Epoch, Decision: c.Decision, Reason: c.Reason, By: c.By,
		Gain: c.Gain, Predicted: c.Predicted, Observed: c.Observed, Times: c.Times, Until: c.Until, Stages: stages,
	}
}

func formerPlanOf(p store.FormerPlan) FormerPlan {
	out := FormerPlan{Model: p.Model, Epoch: p.Epoch, Cuts: p.Cuts, Counts: p.Counts}
	if out.Cuts == nil {
		out.Cuts = []policies.Tokens{} // [] and not null: a plan of one stage
	}
	return out
}

func pinnedOf(p *store.Pin) *Pinned {
	if p == nil {
		return nil
	}
	return &Pinned{FormerPlan: formerPlanOf(p.FormerPlan), By: p.By, At: p.At}
}

// PlanHistory returns what GET /plan/history answers: the decisions about a
// model's plan, or about all plans if model is "".
func (c *Control) PlanHistory(model string) PlanHistory {
	out := PlanHistory{Time: time.Now(), Decisions: []Decision{}, History: []FormerPlan{}, Pins: []Pinned{}}
	s := c.fleet.Snapshot()
	if s == nil {
		return out
	}
	out.Epoch = s.Epoch
	for _, h := range s.History {
		if model == "" || h.Model == model {
			out.Decisions = append(out.Decisions, decisionOf(h))
		}
	}
	for _, p := range s.FormerPlans {
		if model == "" || p.Model == model {
			out.History = append(out.History, formerPlanOf(p))
		}
	}
	for _, m := range s.Models {
		if m.Pin != nil && (model == "" || m.Name == model) {
			out.Pins = append(out.Pins, *pinnedOf(m.Pin))
		}
	}
	return out
}

// planHistory answers GET /plan/history?model=NAME.
func (c *Control) planHistory(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, c.PlanHistory(r.URL.Query().Get("model")))
}

// planCommand returns a command that gives an order about the plan of ?model= and
// ?epoch=, or about the present plan without the latter, given by ?by=.
func (c *Control) planCommand(order func(model string, epoch policies.Epoch, q url.Values) fleetstate.Order) command {
	return func(ctx context.Context, q url.Values) (any, error) {
		model := q.Get("model")
		if model == "" {
			return nil, badRequest("model: missing; use ?model=NAME")
		}
		var epoch policies.Epoch
		if text := q.Get("epoch"); text != "" {
			n, err := strconv.ParseUint(text, 10, 62)
			if err != nil || n == 0 {
				return nil, badRequest(fmt.Sprintf("epoch %.40q: must be the number of a plan; /plan/history lists them", text))
			}
			epoch = policies.Epoch(n)
		}
		if by := q.Get("by"); cleantext.Printable(by, maxBy) != by {
			return nil, badRequest(fmt.Sprintf("by: must be a name of up to %d printable bytes", maxBy))
		}
		if err := c.fleet.Order(ctx, order(model, epoch, q)); err != nil {
			return nil, err
		}
		return c.PlanHistory(model), nil
	}
}
