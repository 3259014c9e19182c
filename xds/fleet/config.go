package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Model is one model, with the cost and the capacity of its engines.
type Model struct {
	// Model is how proxies see it at first. BytesPerToken is served until enough requests were
	// counted.
	resources.Model
	// Cost of one replica, at the fleet's speed (a profile scaled by 1/speed).
	Cost policies.Cost
	// QoE is what its requests experience, at the fleet's speed; policies that plan on
	// snapshots price by it.
	QoE policies.QoE
	// Transfer is the cost of the migration of a running request where the links are
	// not known; the zero value is free.
	Transfer policies.Transfer
	// TokenBytes is the KV of one token in bytes, divided by the fleet's speed. With it,
	// migrations cost Transfer.Base plus the transfer over the links that replicas
	// report, or at the rates of Links where they report none, and plans put adjacent
	// stages on near replicas. 0: all migrations cost Transfer.
	TokenBytes float64
	Links      links.Rates
	// Limits bound the plans; times are at the fleet's speed. Zero: no limit.
	Limits policies.Limits
	// Edges are the length buckets of the flows. The flows of reports with others are
	// ignored. nil means policies.BucketEdges(Context, 4).
	Edges []policies.Tokens
	// History is what the first plan is made for: the flow and the in-flight requests of
	// earlier traffic, by these Edges; its other fields are ignored. Without it the first
	// plan is one stage.
	History policies.Workload
}

// Rules are the constants of a State. Zero values mean the defaults named.
type Rules struct {
	Models []Model
	// Policy names how plans are made: "default" (the fewest stages within 1 % of the least cost, on flows),
	// "paper" (the paper's two-phase planner on the requests of a period), "round-robin"
	// (always one stage), or a partitioner by its own name, such as
	// "recursion". "" means "default".
	Policy string
	// Adopt says which proposals of the planner replace the plan in force. "" is the policy's default: adoption.Always
	// for "paper", and adoption.ByGain for all others.
	Adopt adoption.Rule
	// IterationRatio bounds what stages cost the longest requests; see adoption.LimitIterationRatio. It is at
	// least 1, or 0 for no bound.
	IterationRatio float64
	// StageReplicas is the least number of replicas in a stage of a new plan; 0 and 1 set no minimum.
	StageReplicas int
	// Scaling is how many replicas the models should have; Speed divides its times.
	Scaling planner.ScalerConfig
	// Speed divides Period and HalfLife: emulated fleets run faster. Times about
	// reports are wall clock and stay. 0 means 1.
	Speed float64
	// Period is the time between two plans. 0 means 10 s.
	Period time.Duration
	// HalfLife is that of the flow of a replica that no longer reports. 0 means 30 s.
	HalfLife time.Duration
	// Grace is how long a replica counts as ready after its last report, and how long
	// a replica that has not reported yet counts as ready after the start. Migrators
	// report every second or faster. 0 means 4.5 s.
	Grace time.Duration
	// Seen is how many requests must be counted before a fleet may leave its first,
	// single stage. 0 means 1000.
	Seen uint64
	// Name identifies this control plane in the plan object and in the history: its
	// host:port, for instance. It may be empty where it is the only one, and must be
	// unique where the store is shared.
	Name string
	// Shared says that other control planes use the same store. Then one plans at a
	// time, the one that holds the lease in the plan object (store.LeaseMachine), and all
	// publish what is stored. The models and replicas must be the same for all.
	Shared bool
	// AnyRemoval applies every configured list at once. Otherwise one that lacks more
	// than half of a model's replicas waits for an operator; see HeldRemoval.
	AnyRemoval bool
	// Wrap is called once for the planner of each model, at New, and returns the
	// planner to use in its place, for instance one that calls the site's modules and
	// checks their answers. That planner is called by one goroutine at a time, must return
	// within seconds, must be a function of its arguments, and must not be nil. A nil Wrap
	// leaves planners as they are. It is not called for a policy with one stage.
	Wrap func(model string, native adoption.Planner) adoption.Planner
	// Check returns an error for a plan that must not replace the present one of its
	// model. The plan in force then stays, and the history has the error as its reason.
	// Plans of the planner, boundaries that replicas propose and plans that operators
	// go back to are checked. Repairs, first plans and rollbacks of slow plans are not:
	// a rule must not keep a fleet from serving. Check may be called by several goroutines,
	// should return within seconds, and must not change the plans. The epoch of after is
	// that of before plus one. Nil allows all plans.
	Check func(before, after policies.Plan) error
}

// Values of Rules.Policy; see there for others.
const (
	PolicyDefault    = planner.PolicyDefault
	PolicyPaper      = planner.PolicyPaper
	PolicyRoundRobin = planner.PolicyRoundRobin
)

// Bounds of Rules; their defaults are those of package planner.
const (
	// minPeriod bounds Period divided by Speed: each plan costs milliseconds and a
	// synced file.
	minPeriod = 50 * time.Millisecond
	// minSeenForRatio is how many requests must be counted before learnt bytes per
	// token are served.
	minSeenForRatio = 100
	maxSpeed        = 1000
)

// refines reports whether the replicas' own proposals move the boundaries between stages from one plan to the next, as
// in the paper. The planning of all other policies makes that pointless.
func (r Rules) refines() bool { return r.Policy == PolicyPaper }

// withDefaults returns the rules with the defaults filled in and the speed applied.
func (r Rules) withDefaults() Rules {
	r.Models = slices.Clone(r.Models)
	for i := range r.Models {
		m := &r.Models[i]
		if m.Edges == nil {
			m.Edges = policies.BucketEdges(m.Context, planner.BucketsPerOctave)
		}
		m.BytesPerToken = cmp.Or(m.BytesPerToken, length.DefaultRatio)
	}
	r.Policy = cmp.Or(r.Policy, PolicyDefault)
	if r.Adopt == "" {
		r.Adopt = adoption.ByGain
		if r.refines() {
			r.Adopt = adoption.Always
		}
	}
	r.Speed = cmp.Or(r.Speed, 1)
	r.Seen = cmp.Or(r.Seen, planner.DefaultSeen)
	scaled := func(d time.Duration) time.Duration { return max(time.Duration(float64(d)/r.Speed), minPeriod) }
	r.Period = scaled(cmp.Or(r.Period, duration(planner.DefaultPeriod)))
	r.HalfLife = scaled(cmp.Or(r.HalfLife, duration(planner.DefaultHalfLife)))
	r.Grace = cmp.Or(r.Grace, duration(planner.DefaultGrace))
	return r
}

// validate returns an error for the first bad field of the rules.
func (r Rules) validate() error {
	if len(r.Models) == 0 {
		return errors.New("models: must have at least one")
	}
	if !(r.Speed == 0 || r.Speed > 0 && r.Speed <= maxSpeed) {
		return fmt.Errorf("speed %v: must be above 0 and at most %d", r.Speed, maxSpeed)
	}
	for _, d := range [...]struct {
		name string
		d    time.Duration
	}{{"period", r.Period}, {"half life", r.HalfLife}, {"grace", r.Grace}} {
		if d.d < 0 {
			return fmt.Errorf("%s %v: must not be negative", d.name, d.d)
		}
	}
	if r.Shared && r.Name == "" || len(r.Name) > loadreport.MaxName {
		return fmt.Errorf("name %.40q: must have 1 to %d bytes and differ from those of the other control planes of the store", r.Name, loadreport.MaxName)
	}
	names := make(map[string]bool, len(r.Models))
	for _, m := range r.Models {
		if m.Name == "" || len(m.Name) > loadreport.MaxName {
			return fmt.Errorf("model %.40q: the name must have 1 to %d bytes", m.Name, loadreport.MaxName)
		}
		if names[m.Name] {
			return fmt.Errorf("model %q is configured twice", m.Name)
		}
		names[m.Name] = true
		if err := m.validate(); err != nil {
			return fmt.Errorf("model %q: %w", m.Name, err)
		}
	}
	if r.IterationRatio != 0 && !(r.IterationRatio >= 1) {
		return fmt.Errorf("iteration ratio %v: must be at least 1, or 0 for no bound", r.IterationRatio)
	}
	switch r.Adopt {
	case "", adoption.ByGain, adoption.IfNeeded, adoption.Always:
	default:
		return fmt.Errorf("adopt %q: must be %q, %q, %q or empty", r.Adopt, adoption.ByGain, adoption.IfNeeded, adoption.Always)
	}
	_, err := planner.PolicyNamed(r.Policy)
	return err
}

func (m Model) validate() error {
	switch {
	case m.Context < 1 || m.Context > loadreport.MaxTokens:
		return fmt.Errorf("context %d: must be 1 to %d tokens", m.Context, int64(loadreport.MaxTokens))
	case m.BytesPerToken != 0 && m.BytesPerToken.Clamp() != m.BytesPerToken:
		return fmt.Errorf("bytes per token %v: must be %v to %v, or 0", m.BytesPerToken.Float(), length.MinRatio.Float(), length.MaxRatio.Float())
	case len(m.Edges) > loadreport.MaxEdges:
		return fmt.Errorf("edges: more than %d", loadreport.MaxEdges)
	}
	if m.Edges != nil {
		if err := policies.NewFlow(m.Edges).Validate(); err != nil {
			return err
		}
	}
	if h := m.History; len(h.Flow.Edges) > 0 {
		if err := h.Flow.Validate(); err != nil {
			return fmt.Errorf("history: %w", err)
		}
	}
	if err := m.Cost.Validate(); err != nil {
		return err
	}
	if err := m.QoE.Validate(); err != nil {
		return err
	}
	if err := m.Transfer.Validate(); err != nil {
		return err
	}
	if !loadreport.Within(m.TokenBytes, loadreport.MaxRate) || m.Links.SameHost < 0 || m.Links.BetweenHosts < 0 || m.Links.MaxBetweenHosts < 0 {
		return errors.New("token bytes and the rates of links must not be negative")
	}
	return m.Limits.Validate()
}

// CheckReplicas returns an error for a list of replicas that cannot serve the models;
// see registry.Check.
func CheckReplicas(models []Model, list []policies.Replica) error {
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.Name
	}
	return fleetstate.Check(names, list)
}
