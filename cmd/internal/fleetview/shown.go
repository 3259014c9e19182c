package fleetview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Shown is what a frame shows, as data: "cascade top --json" prints it. Every text in it is clean (Clean).
type Shown struct {
	Time    time.Time `json:"time"`
	Control string    `json:"control"` // the control plane that answered, or was asked
	Verdict Verdict   `json:"verdict"`
	// AwaySince is since when no control plane has answered, and Error why; absent while one does. All that
	// follows is then what the last answer said.
	AwaySince *time.Time      `json:"away_since,omitempty"`
	Error     string          `json:"error,omitempty"`
	Faults    []control.Fault `json:"faults"`
	// Model is the one that is shown, of Models.
	Model  string   `json:"model,omitempty"`
	Models []string `json:"models"`
	// Epoch is that of the model's plan, and PublishedEpoch what every group of proxies was sent.
	Epoch          policies.Epoch  `json:"epoch"`
	PublishedEpoch policies.Epoch  `json:"published_epoch"`
	Phase          string          `json:"phase,omitempty"`
	Planner        string          `json:"planner,omitempty"`
	Rate           float64         `json:"rate"` // requests per second
	Context        policies.Tokens `json:"context"`
	// Desired is how many replicas the control plane recommends; 0: it does not know yet. Present is how many replicas
	// there are, without drained ones once the control plane recommends a number.
	Desired    int         `json:"desired_replicas,omitempty"`
	Present    int         `json:"present_replicas"`
	Stages     []Stage     `json:"stages"`
	Replicas   []Replica   `json:"replicas"`
	Hidden     int         `json:"hidden_replicas,omitempty"` // by the filter
	Migrations []Migration `json:"migrations"`
	Proxies    []Proxy     `json:"proxies"`
}

// Verdict is the verdict of the status, or Away.
type Verdict = control.Verdict

// Away is the verdict while no control plane answers.
const Away Verdict = "away"

// Stage is one stage of the plan in force.
type Stage struct {
	Name string           `json:"name"`
	Low  policies.Tokens  `json:"low"`
	High *policies.Tokens `json:"high,omitempty"` // absent for the last one
	// Replicas is how many it has, Healthy how many of them take requests.
	Replicas int `json:"replicas"`
	Healthy  int `json:"healthy"`
	// Load is the mean load of the replicas; see Replica.
	Load             float64 `json:"load"`
	Running, Waiting int     `json:"-"`
	Requests         float64 `json:"request_share,omitempty"`
	Tokens           float64 `json:"token_share,omitempty"`
}

// Replica is one replica.
type Replica struct {
	ID     string `json:"id"`
	Stage  string `json:"stage"` // "prefill" for a prefill replica, "-" for one in no stage
	Host   string `json:"host,omitempty"`
	Health string `json:"health"`
	Reason string `json:"reason,omitempty"`
	// Load is the share of the KV cache that is used and promised; where the engine does not report its size,
	// relative to the replica that holds most.
	Load    float64 `json:"load"`
	Running int     `json:"running"`
	Waiting int     `json:"waiting"`
	Held    int64   `json:"held_tokens"`
	// Iteration is the mean time between a request's tokens, in seconds.
	Iteration float64 `json:"iteration_seconds"`
	Weight    uint32  `json:"weight"`
	// Drain is who drains it; Residents counts the requests that still run there.
	Drain     []string `json:"drain,omitempty"`
	Residents int      `json:"residents"`
}

// Migration is one migration of a request.
type Migration struct {
	Began   *time.Time `json:"began,omitempty"`
	Request string     `json:"request"`
	From    string     `json:"from"`
	To      string     `json:"to"`
	Cause   string     `json:"cause"`
	Method  string     `json:"method"`
	State   string     `json:"state"`
	Tokens  int64      `json:"tokens"`
	Stall   float64    `json:"stall_seconds"`
}

// Proxy is one proxy.
type Proxy struct {
	Node  string         `json:"node"`
	State string         `json:"state"` // gone, refuses, late, unlisted, current, following
	Epoch policies.Epoch `json:"epoch"`
	NACKs uint64         `json:"nacks"`
	Error string         `json:"last_error,omitempty"`
}

// Show returns what a model of the terminal shows: the last answer, with the chosen model, order and filter.
func Show(m Model) Shown {
	st := m.last.Status
	out := Shown{
		Time: m.now, Control: Clean(m.control), Verdict: st.Verdict,
		Epoch: st.Epoch, PublishedEpoch: st.PublishedEpoch, Phase: Clean(st.Phase),
		Faults: []control.Fault{}, Models: []string{}, Stages: []Stage{},
		Replicas: []Replica{}, Migrations: []Migration{}, Proxies: []Proxy{},
	}
	if m.answered && st.Verdict == "" { // by a control plane that is older than this command
		out.Verdict = control.VerdictOf(st.Faults, st.Epoch)
	}
	for _, f := range st.Faults {
		f.Kind, f.Object, f.Text = Clean(f.Kind), Clean(f.Object), Clean(f.Text)
		out.Faults = append(out.Faults, f)
	}
	if !m.awaySince.IsZero() {
		since := m.awaySince
		out.Verdict, out.AwaySince, out.Error = Away, &since, Clean(m.err)
	}
	for _, model := range st.Models {
		out.Models = append(out.Models, Clean(model.Name))
	}
	if i := m.modelIndex(); i >= 0 {
		out.addModel(m, st.Models[i])
	}
	for _, x := range m.last.Migrations.Migrations {
		out.addMigration(m, x)
	}
	for _, n := range st.Nodes {
		p := Proxy{Node: Clean(n.ID), State: Clean(n.State), Epoch: n.Epoch, NACKs: n.NACKs, Error: Clean(n.LastError)}
		if m.matches(p.Node, p.State) {
			out.Proxies = append(out.Proxies, p)
		}
	}
	slices.SortStableFunc(out.Proxies, func(a, b Proxy) int {
		return cmp.Or(proxyOrder(a)-proxyOrder(b), strings.Compare(a.Node, b.Node))
	})
	return out
}

// addModel adds the stages and replicas of the model that is shown.
func (s *Shown) addModel(m Model, model control.Model) {
	s.Model, s.Planner = Clean(model.Name), Clean(model.Planner)
	s.Epoch, s.Rate, s.Context = model.Epoch, model.Rate, model.Context
	most := policies.Tokens(1)
	for _, st := range model.Stages {
		for _, r := range st.Replicas {
			most = max(most, r.Held+r.Promised)
		}
	}
	var all []Replica
	for _, st := range model.Stages {
		row := Stage{Name: Clean(st.Name), Low: st.Low, High: st.High, Replicas: len(st.Replicas)}
		if st.Reason != nil {
			row.Requests, row.Tokens = st.Reason.Requests, st.Reason.Tokens
		}
		for _, r := range st.Replicas {
			replica := replicaOf(r, row.Name, most)
			all = append(all, replica)
			row.Load += replica.Load / float64(len(st.Replicas))
			row.Running, row.Waiting = row.Running+r.Running, row.Waiting+r.Waiting
			if r.Health == healthy {
				row.Healthy++
			}
		}
		s.Stages = append(s.Stages, row)
	}
	for _, r := range model.Unassigned {
		all = append(all, replicaOf(r, cmp.Or(Clean(r.Role), "-"), most))
	}
	s.Present = len(all)
	if sc := model.Scaling; sc != nil { // it does not count those that are drained
		s.Desired, s.Present = sc.Desired, sc.Present
	}
	for _, r := range all {
		if m.matches(r.ID, r.Stage, r.Host, r.Health, r.Reason) {
			s.Replicas = append(s.Replicas, r)
		}
	}
	s.Hidden = len(all) - len(s.Replicas)
	m.order.sort(s.Replicas)
}

// healthy is the health of a replica that takes requests.
const healthy = "healthy"

// replicaOf returns one row. most is what the replica holds that holds most.
func replicaOf(r control.Replica, stage string, most policies.Tokens) Replica {
	out := Replica{
		ID: Clean(string(r.ID)), Stage: stage, Host: Clean(r.Host), Health: Clean(r.Health), Reason: Clean(r.HealthReason),
		Running: r.Running, Waiting: r.Waiting, Held: int64(r.Held),
		Iteration: r.Iteration, Weight: r.Weight, Residents: r.Residents,
		Load: share(r.Held+r.Promised, most),
	}
	if out.Reason == "" && out.Health != healthy {
		out.Reason = Clean(r.Reason)
	}
	if e := r.EngineLoad; e != nil && e.Capacity > 0 {
		out.Load = share(e.KVUsed+r.Promised, e.Capacity)
	}
	for _, by := range r.Drain {
		out.Drain = append(out.Drain, Clean(by))
	}
	return out
}

// share returns a part of a whole, 0 to 1.
func share(part, whole policies.Tokens) float64 {
	return min(max(float64(part)/float64(whole), 0), 1)
}

// addMigration adds a migration that the filter does not hide.
func (s *Shown) addMigration(m Model, x control.Migration) {
	row := Migration{
		Request: Clean(x.Request), From: Clean(string(x.From)), To: Clean(string(x.To)),
		Cause:  Clean(x.Cause),
		Method: Clean(x.Method), State: Clean(x.State), Tokens: int64(x.Tokens), Stall: x.Stall,
	}
	if !x.Started.IsZero() {
		row.Began = &x.Started
	}
	if x.Reason != "" {
		row.State += ": " + Clean(x.Reason)
	}
	if m.matches(row.Request, row.From, row.To, row.Cause, row.Method, row.State) {
		s.Migrations = append(s.Migrations, row)
	}
}

// proxyOrder puts the proxies that need attention first.
func proxyOrder(p Proxy) int {
	return slices.Index([]string{"refuses", "late", "gone", "unlisted", "following", "current"}, p.State)
}

// Order is the order of the replicas.
type Order int

// The orders, in which the key s goes through them.
const (
	ByStage Order = iota
	ByLoad
	ByWaiting
	ByIteration
	ByName
	orders = iota
)

// String names the order, as --sort does.
func (o Order) String() string {
	return [...]string{"stage", "load", "waiting", "iteration", "name"}[o]
}

// ParseOrder returns the order of a name.
func ParseOrder(name string) (Order, error) {
	var names []string
	for o := range Order(orders) {
		if o.String() == name {
			return o, nil
		}
		names = append(names, o.String())
	}
	return 0, fmt.Errorf("%q: must be one of %s", name, strings.Join(names, ", "))
}

// sort sorts replicas; those that are equal keep the order of the plan.
func (o Order) sort(list []Replica) {
	slices.SortStableFunc(list, func(a, b Replica) int {
		switch o {
		case ByLoad:
			return cmp.Compare(b.Load, a.Load)
		case ByWaiting:
			return cmp.Compare(b.Waiting, a.Waiting)
		case ByIteration:
			return cmp.Compare(b.Iteration, a.Iteration)
		case ByName:
			return strings.Compare(a.ID, b.ID)
		}
		return 0
	})
}
