package fleet

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/internal/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Snapshot is the whole fleet at one moment: what is published, and what an
// operator asks for. It is immutable and shared freely.
type Snapshot struct {
	Time    time.Time
	Epoch   policies.Epoch // of the newest plan in force
	Models  []ModelState   // in the order of the configuration
	History []Change       // oldest first, bounded; see Change.Changes
	// Past are the plans that an operator may go back to, the oldest first, and
	// Refused what proxies have refused. Planner is who plans.
	Past    []store.Past
	Refused []store.Refusal
	Planner Planner
}

// ModelState is one model of a Snapshot.
type ModelState struct {
	Name    string
	Context policies.Tokens
	Hosts   []string
	Plan    policies.Plan
	// Reason is why Plan replaced the one before; Planner is what the last
	// planning period decided, and why, also when it kept the plan.
	Reason, Planner string
	Pin             *store.Pin // nil: none
	// BytesPerToken is served, LearntBytesPerToken is what the reports say now
	// (0: nothing yet).
	BytesPerToken, LearntBytesPerToken length.Ratio
	// EstimateError is the mean relative error of the length estimate.
	EstimateError float64
	Refining      bool          // replicas propose boundaries between two plans
	Seen          uint64        // requests counted so far
	Flow          policies.Flow // summed over the replicas
	Replicas      []ReplicaState
	// Links are the rates where replicas tell of no links; the zero value where links
	// make no difference.
	Links links.Rates
}

// ReplicaState is one replica of a Snapshot.
type ReplicaState struct {
	policies.Replica
	Stage    int // index in the plan; -1: in no stage
	Health   resources.Health
	Weight   uint32
	Load     policies.Load
	Reported time.Time // zero: never
	// Connected says that a report stream is open.
	Connected bool
	Note      string // what is wrong with its reports; usually empty
	// Figure is what is believed of its load, which its weight follows.
	Figure loadreport.Figure
	// Asked says that an operator drains it; Replica.Draining is the
	// configuration's.
	Asked bool
	// Stopping says that its migrator takes no new request of its own accord.
	Stopping bool
	Settling
	Routes []Route        // by which blocks may come to it
	Site   links.Topology // where its KV cache is
}

// View is the routing part of the snapshot under the given settings.
func (s *Snapshot) View(settings resources.Settings) resources.View {
	v := resources.View{Settings: settings}
	for _, m := range s.Models {
		v.Models = append(v.Models, resources.Model{Name: m.Name, Context: m.Context, Hosts: m.Hosts, BytesPerToken: m.BytesPerToken})
		v.Plans = append(v.Plans, m.Plan)
		for _, r := range m.Replicas {
			v.Endpoints = append(v.Endpoints, resources.Endpoint{
				ID: r.ID, Model: r.Model, Address: r.Address, Peer: r.Peer, Host: r.Host,
				Weight: r.Weight, Health: r.Health, Capacity: r.Capacity, Adapters: r.Adapters,
			})
		}
	}
	return v
}

// Model returns the state of a model, or nil.
func (s *Snapshot) Model(name string) *ModelState {
	for i := range s.Models {
		if s.Models[i].Name == name {
			return &s.Models[i]
		}
	}
	return nil
}
