package fleet

import (
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Model is one model and what its engines cost and hold.
type Model struct {
	Name    string          // as clients spell it
	Context policies.Tokens // the longest sequence
	Hosts   []string        // host names that belong to this model alone
	// Cost of one replica, at the fleet's speed (a profile scaled by 1/speed).
	Cost policies.Cost
	// Transfer prices a running request's hand-over where nothing is known of the
	// links; the zero value is free.
	Transfer policies.Transfer
	// TokenBytes is the KV of one token in bytes, over the fleet's speed. With it
	// hand-overs cost Transfer.Base and what they take by the links that replicas tell
	// of, by the rates of Links where they tell of none, and plans put adjacent stages
	// on near replicas. 0: all hand-overs cost Transfer.
	TokenBytes float64
	Links      links.Rates
	// Limits bound the plans; times at the fleet's speed. Zero: no limit.
	Limits policies.Limits
	// Edges are the length buckets of the flows. Reports with others are taken
	// in without their flow. nil means policies.BucketEdges(Context, 4).
	Edges []policies.Tokens
	// BytesPerToken is served until enough requests were counted. 0 means
	// length.DefaultRatio.
	BytesPerToken length.Ratio
}

// Rules are the constants of a State. Zero values mean the defaults named.
type Rules struct {
	Models []Model
	// Policy names how plans are made: "default" (exact planner on flows),
	// "paper" (the paper's two-phase planner on snapshots), "round-robin"
	// (always one stage), or a partitioner by its own name, such as
	// "recursion". "" means "default".
	Policy string
	// Refine says whether the replicas' own proposals move the boundaries
	// between stages from one plan to the next: "on", "off", or "" for what the
	// policy means, which is "on" for "paper" and "off" for all others, whose
	// re-planning makes it pointless.
	Refine string
	// Speed divides Period and HalfLife: emulated fleets live faster. Times
	// about reports are wall clock and stay. 0 means 1.
	Speed float64
	// Period between plans. 0 means 10 s.
	Period time.Duration
	// HalfLife of the flow of a replica that no longer reports. 0 means 30 s.
	HalfLife time.Duration
	// Grace is how long a replica counts as ready after its last report, and
	// how long one is trusted at start that was not heard of yet. Fronts report
	// every second or faster. 0 means 5 s.
	Grace time.Duration
	// Seen is how many requests must be counted before a fleet leaves its
	// first, single stage. 0 means 1000.
	Seen uint64
	// Name is that of this control plane, by which it is known in the plan object
	// and in the history: its host:port, for instance. It may be empty where it is
	// alone, and must be one of its own where the store is shared.
	Name string
	// Shared says that other control planes use the same store. Then one plans at
	// a time, the one that holds the lease in the plan object (package lease), and
	// all show what is stored. The models and replicas must be the same for all.
	Shared bool
	// Wrap is given the planner of each model once, at New, and returns the one to
	// ask in its place: what a site's modules propose, checked. It must answer as
	// soon as Native would, because reports wait meanwhile, must be a function of
	// what it is asked, and must not return nil. Nil leaves planners as they are. A
	// policy with one stage asks nobody.
	Wrap func(model string, native adoption.Planner) adoption.Planner
	// Check says what is against a plan that is to replace another one of its model;
	// nil: nothing. The plan in force then stays, and the history has the error as
	// its reason. Plans of the planner, boundaries that replicas propose and plans
	// that operators go back to are checked. Repairs are not, the first plan is not,
	// and neither is a plan that is taken back for its slowness: a rule must not
	// keep a fleet from what it serves with. It is called by the goroutine that takes
	// in reports, shall answer within a quarter of a second, and must not change the
	// plans. Nil checks nothing.
	Check func(before, after policies.Plan) error
}

// Defaults of Rules, and bounds that follow from them.
const (
	defaultPeriod   = 10 * time.Second
	defaultHalfLife = 30 * time.Second
	defaultGrace    = 5 * time.Second
	defaultSeen     = 1000
	// defaultOctave is the buckets per doubling of the default edges.
	defaultOctave = 4
	// minPeriod bounds what Speed can make of Period: a plan costs
	// milliseconds and a file that is synced.
	minPeriod = 50 * time.Millisecond
	// weighEvery bounds how often EDS weights may change.
	weighEvery = time.Second
	// refineEvery bounds how often boundaries may move: each time is a synced
	// file and a route table for every proxy.
	refineEvery = time.Second
	// ratioSeen is how many requests must be counted before bytes per token
	// are believed.
	ratioSeen = 100
	// historyLength bounds the changes that a State remembers.
	historyLength = 64
	maxSpeed      = 1000
)

// complete fills in the defaults and applies the speed.
func (r Rules) complete() Rules {
	r.Models = append([]Model(nil), r.Models...)
	for i := range r.Models {
		m := &r.Models[i]
		if m.Edges == nil {
			m.Edges = policies.BucketEdges(m.Context, defaultOctave)
		}
		if m.BytesPerToken == 0 {
			m.BytesPerToken = length.DefaultRatio
		}
	}
	if r.Policy == "" {
		r.Policy = PolicyDefault
	}
	if r.Refine == "" {
		r.Refine = RefineOff
		if r.Policy == PolicyPaper {
			r.Refine = RefineOn
		}
	}
	if r.Speed == 0 {
		r.Speed = 1
	}
	if r.Seen == 0 {
		r.Seen = defaultSeen
	}
	r.Period = max(scaled(r.Period, defaultPeriod, r.Speed), minPeriod)
	r.HalfLife = max(scaled(r.HalfLife, defaultHalfLife, r.Speed), minPeriod)
	r.Grace = scaled(r.Grace, defaultGrace, 1)
	return r
}

// scaled is d, or its default, divided by the speed.
func scaled(d, otherwise time.Duration, speed float64) time.Duration {
	if d == 0 {
		d = otherwise
	}
	return time.Duration(float64(d) / speed)
}

// validate reports the first bad field of the rules as given.
func (r Rules) validate() error {
	if len(r.Models) == 0 {
		return errors.New("models: a fleet serves at least one")
	}
	if !(r.Speed == 0 || r.Speed > 0 && r.Speed <= maxSpeed) {
		return fmt.Errorf("speed %v: want a number in (0, %d]", r.Speed, maxSpeed)
	}
	for _, d := range [...]struct {
		name string
		d    time.Duration
	}{{"period", r.Period}, {"half life", r.HalfLife}, {"grace", r.Grace}} {
		if d.d < 0 {
			return fmt.Errorf("%s %v: must not be negative", d.name, d.d)
		}
	}
	if r.Shared && r.Name == "" || len(r.Name) > maxName {
		return fmt.Errorf("name %.40q: want 1 to %d bytes that no other control plane of the store has", r.Name, maxName)
	}
	names := make(map[string]bool, len(r.Models))
	for _, m := range r.Models {
		if m.Name == "" || len(m.Name) > maxName {
			return fmt.Errorf("model %.40q: want a name of 1 to %d bytes", m.Name, maxName)
		}
		if names[m.Name] {
			return fmt.Errorf("model %q is there twice", m.Name)
		}
		names[m.Name] = true
		if err := m.validate(); err != nil {
			return fmt.Errorf("model %q: %w", m.Name, err)
		}
	}
	switch r.Refine {
	case "", RefineOn, RefineOff:
	default:
		return fmt.Errorf("refine %q: want %q, %q or nothing", r.Refine, RefineOn, RefineOff)
	}
	_, err := policyOf(r.Policy)
	return err
}

func (m Model) validate() error {
	switch {
	case m.Context < 1 || m.Context > maxTokens:
		return fmt.Errorf("context %d: want 1 to %d tokens", m.Context, int64(maxTokens))
	case m.BytesPerToken != 0 && m.BytesPerToken.Clamp() != m.BytesPerToken:
		return fmt.Errorf("bytes per token %v: want %v to %v, or 0", m.BytesPerToken.Float(), length.MinRatio.Float(), length.MaxRatio.Float())
	case len(m.Edges) > maxEdges:
		return fmt.Errorf("edges: more than %d", maxEdges)
	}
	if m.Edges != nil {
		if err := policies.NewFlow(m.Edges).Validate(); err != nil {
			return err
		}
	}
	if err := m.Cost.Validate(); err != nil {
		return err
	}
	if err := m.Transfer.Validate(); err != nil {
		return err
	}
	if !within(m.TokenBytes, maxRate) || m.Links.SameHost < 0 || m.Links.BetweenHosts < 0 || m.Links.MaxBetweenHosts < 0 {
		return errors.New("token bytes and the rates of links must not be negative")
	}
	return m.Limits.Validate()
}
