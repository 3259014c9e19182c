package policies

import (
	"slices"
	"strconv"
)

// Replica is one engine and its migrator, as registered with the control plane.
//
// Invariants, checked by Validate:
//  1. ID, Model and Address are not empty,
//  2. Capacity is valid.
type Replica struct {
	ID       ReplicaID
	Model    string
	Address  string // host:port of the migrator's front end; the address in EDS
	Peer     string // host:port where other migrators reach it
	Host     string // the machine, for locality and transfer cost
	Capacity Capacity
	// Adapters are the LoRA adapters of Model that the engine has loaded. A request
	// for an adapter that some replicas list runs only on those; see type Adapters.
	Adapters []string
	// Draining replicas accept no new requests and belong to no stage.
	Draining bool
	// Prefill replicas compute the prompts of new requests, which then move to a replica of
	// the stage of their length. They belong to no stage and take no running request.
	// The JSON of other replicas lacks the field: the digest of a list without prefill
	// replicas does not depend on it.
	Prefill bool `json:",omitempty"`
	// Engine is where its engine listens, for messages to operators; "" where that is not known.
	Engine string `json:",omitempty"`
}

// Equal reports whether two replicas are equal, including the order of their
// adapters.
func (r Replica) Equal(o Replica) bool {
	return r.ID == o.ID && r.Model == o.Model && r.Address == o.Address && r.Peer == o.Peer && r.Host == o.Host &&
		r.Capacity == o.Capacity && r.Draining == o.Draining && r.Prefill == o.Prefill && r.Engine == o.Engine && slices.Equal(r.Adapters, o.Adapters)
}

// Validate reports the first broken invariant, or nil.
func (r Replica) Validate() error {
	if r.ID == "" || r.Model == "" || r.Address == "" {
		return &Violation{"replica " + strconv.Quote(string(r.ID)), "1: id, model and address must not be empty"}
	}
	if err := r.Capacity.Validate(); err != nil {
		return &Violation{"replica " + strconv.Quote(string(r.ID)), "2: " + err.Error()}
	}
	return nil
}

// Stage is a range of lengths and the replicas that serve it.
type Stage struct {
	Low, High Tokens // [Low, High); High of the last stage is Unbounded
	Replicas  []ReplicaID
}

// Plan lists the stages of one model. It is plain data: it can be printed, compared
// and stored; only the control plane acts on it.
//
// Invariants, checked by Validate:
//  1. Model is not empty,
//  2. there are 1 to MaxStages stages,
//  3. the first stage starts at 0 and every other one where its predecessor ends,
//     no range is empty, and the last one ends at Unbounded,
//  4. every stage has at least one replica,
//  5. no replica is in two stages.
type Plan struct {
	Model  string
	Epoch  Epoch
	Stages []Stage // short to long
}

// Validate reports the first broken invariant, or nil.
func (p Plan) Validate() error {
	if p.Model == "" {
		return &Violation{"plan", "1: the model must be named"}
	}
	subject := "plan of " + p.Model
	if len(p.Stages) < 1 || len(p.Stages) > MaxStages {
		return &Violation{subject, "2: a plan has 1 to " + strconv.Itoa(MaxStages) + " stages, not " + strconv.Itoa(len(p.Stages))}
	}
	seen := make(map[ReplicaID]bool)
	want := Tokens(0)
	for i, s := range p.Stages {
		at := subject + ", stage " + strconv.Itoa(i)
		if s.Low != want || s.High <= s.Low {
			return &Violation{at, "3: the range [" + s.Low.String() + ", " + s.High.String() + ") must start at " + want.String() + " and not be empty"}
		}
		want = s.High
		if len(s.Replicas) == 0 {
			return &Violation{at, "4: a stage needs at least one replica"}
		}
		for _, r := range s.Replicas {
			if seen[r] {
				return &Violation{at, "5: replica " + strconv.Quote(string(r)) + " is in two stages"}
			}
			seen[r] = true
		}
	}
	if want != Unbounded {
		return &Violation{subject, "3: the last stage must be open, not end at " + want.String()}
	}
	return nil
}

// StageOf returns the index of the stage whose range holds length t. The plan
// must be valid; a negative t counts as 0.
func (p Plan) StageOf(t Tokens) int {
	for i, s := range p.Stages {
		if t < s.High {
			return i
		}
	}
	return len(p.Stages) - 1
}

// StageOfReplica returns the stage of a replica, or -1.
func (p Plan) StageOfReplica(id ReplicaID) int {
	for i, s := range p.Stages {
		for _, r := range s.Replicas {
			if r == id {
				return i
			}
		}
	}
	return -1
}

// Cuts lists the interior boundaries, ascending.
func (p Plan) Cuts() []Tokens {
	var cuts []Tokens
	for i := 1; i < len(p.Stages); i++ {
		cuts = append(cuts, p.Stages[i].Low)
	}
	return cuts
}

// OneStagePlan returns the plan that serves all lengths on all replicas. It routes
// like plain round robin, and every fleet starts with it.
func OneStagePlan(model string, replicas []ReplicaID) Plan {
	return Plan{Model: model, Stages: []Stage{{Low: 0, High: Unbounded, Replicas: replicas}}}
}
