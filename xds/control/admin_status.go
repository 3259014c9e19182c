package control

import (
	"math"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Status is what GET /status answers, as JSON: the replicas and plans of every
// model, and which proxies follow them. Fields are only ever added.
type Status struct {
	Time time.Time `json:"time"`
	// Epoch of the newest plan in force. 0: there is none yet.
	Epoch  policies.Epoch `json:"epoch"`
	Policy string         `json:"policy"`
	// PublishedEpoch is the epoch of the routes that every group of proxies was
	// sent; Phase is the phase of the newest plan's rollout: idle, add, flip,
	// watch or retire.
	PublishedEpoch policies.Epoch `json:"published_epoch"`
	Phase          string         `json:"phase"`
	// Error says why the newest view is not published; empty when it is.
	Error string `json:"error,omitempty"`
	// Verdict says whether the fleet is well, and Faults lists what does not work, the most serious first.
	Verdict Verdict `json:"verdict"`
	Faults  []Fault `json:"faults,omitempty"`
	Models  []Model `json:"models"`
	Nodes   []Node  `json:"nodes"`
	// Groups are the groups of proxies, in the order in which they get plans.
	Groups []Group `json:"groups"`
	// Refused are the plans that were rolled back because proxies refused them, oldest
	// first.
	Refused []Refusal `json:"refused,omitempty"`
	// Observers counts the migrators and other clients that follow the plans and route
	// nothing; they are not among the Nodes.
	Observers int      `json:"observers,omitempty"`
	History   []Change `json:"history"` // changes of plan, oldest first
	// Plaintext names what may travel unencrypted between hosts; see tls.plaintext in the fleet file.
	Plaintext []string `json:"plaintext,omitempty"`
	// Planner says which control plane plans, and Planes lists the others of the store.
	Planner Planner `json:"planner"`
	Planes  []Plane `json:"planes,omitempty"`
	// Policies are the policy slots that have ever had a module or that a host
	// reports, by name; GET /policies has more of each.
	Policies []PolicySummary `json:"policies,omitempty"`
}

// Model is one model of a Status.
type Model struct {
	Name    string          `json:"name"`
	Context policies.Tokens `json:"context"`
	Epoch   policies.Epoch  `json:"epoch"`
	// Reason is why this plan replaced the previous one; Planner is the last
	// planning period's decision, even if it changed nothing.
	Reason  string `json:"reason"`
	Planner string `json:"planner,omitempty"`
	// Pinned is the plan that an operator has pinned; absent: none.
	Pinned *Pinned `json:"pinned,omitempty"`
	Stages []Stage `json:"stages"`
	// Unassigned replicas are in no stage: new and not ready, drained, or prefill replicas.
	Unassigned []Replica `json:"unassigned,omitempty"`
	// Seen is the number of requests served so far. Rate is the requests per second now, with those that
	// are refused, RefusedShare their share, and Queue the seconds that a request waits for its first token.
	Seen         uint64  `json:"seen"`
	Rate         float64 `json:"rate"`
	RefusedShare float64 `json:"refused_share,omitempty"`
	Queue        float64 `json:"queue_seconds,omitempty"`
	// BytesPerToken is the ratio in use; LearntBytesPerToken the one measured
	// by exact counts (0: none yet).
	BytesPerToken       float64 `json:"bytes_per_token"`
	LearntBytesPerToken float64 `json:"learnt_bytes_per_token,omitempty"`
	// EstimateError is the mean relative error of the length estimate.
	EstimateError float64 `json:"estimate_error,omitempty"`
	// Refining says that replicas propose boundaries between two plans.
	Refining bool `json:"refining,omitempty"`
	// Scaling is how many replicas the model should have; absent until that has been worked out.
	Scaling *Scaling `json:"scaling,omitempty"`
}

// Stage is a range of lengths with its replicas.
type Stage struct {
	Name string          `json:"name"` // as in cluster names: s0, s1, …
	Low  policies.Tokens `json:"low"`
	// High is the end of [Low, High); absent for the last stage, which is open.
	High     *policies.Tokens `json:"high,omitempty"`
	Replicas []Replica        `json:"replicas"`
	// Reason is why the stage exists; absent where that is not known.
	Reason *StageReason `json:"reason,omitempty"`
}

// StageReason is why a stage exists: what it serves of the traffic of the last planning period, and
// what the plan would cost without it.
type StageReason struct {
	Requests float64 `json:"request_share"` // of the requests that arrive
	Tokens   float64 `json:"token_share"`   // of the tokens that are generated
	// MergedWith is the neighbour with which the stage would be merged at the least cost; absent
	// for the only stage.
	MergedWith string `json:"merged_with,omitempty"`
	// CostRise is by how much the predicted cost of the plan would then rise, as a share of it. It is
	// absent if the merged stages would break a limit.
	CostRise *float64 `json:"cost_rise,omitempty"`
}

// Replica is one replica of a Status.
type Replica struct {
	ID      policies.ReplicaID `json:"id"`
	Address string             `json:"address"`
	Host    string             `json:"host,omitempty"`
	// Role is "prefill" for a prefill replica, which is in no stage; absent for others.
	Role   string `json:"role,omitempty"`
	Health string `json:"health"` // healthy, draining, unhealthy
	// Reason is a label for why, HealthReason a sentence (absent: it is ready), and
	// HealthSeconds how long the health has lasted.
	Reason        string          `json:"reason,omitempty"`
	HealthReason  string          `json:"health_reason,omitempty"`
	HealthSeconds float64         `json:"health_seconds,omitempty"`
	Weight        uint32          `json:"weight"`
	Running       int             `json:"running"`
	Waiting       int             `json:"waiting"`
	Held          policies.Tokens `json:"held_tokens"`
	Capacity      policies.Tokens `json:"capacity_tokens"` // of its KV cache
	// Promised is the length of the requests that are accepted and not yet
	// running.
	Promised policies.Tokens `json:"promised_tokens"`
	// Iteration is the recent mean time between a request's tokens, in seconds.
	Iteration float64 `json:"iteration_seconds"`
	// ProxyRequests counts the requests that all proxies have in progress at
	// the replica's address; absent: none reports. Where requests migrate they
	// are streams, not load.
	ProxyRequests *int `json:"proxy_requests,omitempty"`
	// Load is the source of the load that its weight follows: migrator, proxies, or
	// none.
	Load string `json:"load"`
	// ReportAge is the seconds since the last load report; absent: there was
	// none.
	ReportAge *float64 `json:"report_age_seconds,omitempty"`
	Connected bool     `json:"connected"`
	Note      string   `json:"note,omitempty"` // what is wrong with its reports
	// Drain lists what drains it: file, operator, or migrator for one that refuses new
	// requests by itself.
	Drain []string `json:"drain,omitempty"`
	// Residents counts the requests that run here. Pinned of them cannot migrate; the
	// last of these is expected to end in PinnedSeconds (0: unknown, or none). Streams
	// counts the streams of the replica's own clients, wherever their requests run. A
	// drain is over when Residents is 0, and its migrator may stop when Streams is 0
	// too.
	Residents     int     `json:"residents"`
	Pinned        int     `json:"pinned,omitempty"`
	PinnedSeconds float64 `json:"pinned_seconds,omitempty"`
	Streams       int     `json:"streams"`
	// Engine is what its engine says of itself.
	Engine loadreport.Engine `json:"engine,omitzero"`
	// EngineLoad is what the engine reports of its load; absent: nothing.
	EngineLoad *EngineLoad `json:"engine_load,omitempty"`
	// KnownPrefixes is what it knows of the prompts that its engine has cached; absent:
	// it has not reported.
	KnownPrefixes loadreport.KnownPrefixes `json:"known_prefixes,omitzero"`
	// Transports are those by which KV blocks may be pulled to it, best first, then the
	// measurements peer by peer.
	Transports []Transport `json:"transports,omitempty"`
}

// EngineLoad is an engine's own report of its load.
type EngineLoad struct {
	// Capacity is the size of the KV cache that counts: the smaller of the engine's and the
	// fleet file's, if it states one. Absent: the engine does not report its KV.
	Capacity policies.Tokens `json:"capacity_tokens,omitempty"`
	// KVUsed is the KV in use, where requests that share a prefix count it once.
	KVUsed      policies.Tokens `json:"kv_used_tokens"`
	Running     int             `json:"running"`
	Waiting     int             `json:"waiting"`
	Preemptions uint64          `json:"preemptions"`
}

// Transport is a transport by which a replica may pull KV blocks.
type Transport = loadreport.Route

// Change is one entry of the plan history: a Decision that changed a plan.
type Change = Decision

// Group is one group of proxies of a Status, Node one proxy or gRPC client, Refusal one refused plan.
type (
	Group   = publish.Group
	Node    = publish.Node
	Refusal = publish.Refusal
)

// statusOf renders a Status. Without a snapshot the fleet has not started yet.
func statusOf(s *fleet.Snapshot, p publish.Status, policy string, now time.Time) Status {
	out := Status{Time: now, Policy: policy, Phase: p.Phase, PublishedEpoch: p.Epoch, Refused: p.Refused, Models: []Model{}, Nodes: []Node{}, Groups: append([]Group{}, p.Groups...), History: []Change{}}
	if p.Err != nil {
		out.Error = p.Err.Error()
	}
	for _, n := range p.Nodes {
		switch {
		case !n.Observer:
			out.Nodes = append(out.Nodes, n)
		case n.Connected:
			out.Observers++
		}
	}
	if s == nil {
		return out
	}
	out.Epoch, out.Planner = s.Epoch, plannerOf(s.Leadership, now)
	for _, m := range s.Models {
		out.Models = append(out.Models, modelOf(m, now))
	}
	for _, c := range s.History {
		if c.Replaces() { // the others are in GET /plan/history only
			out.History = append(out.History, decisionOf(c))
		}
	}
	return out
}

func modelOf(m fleet.ModelState, now time.Time) Model {
	out := Model{
		Name: m.Name, Context: m.Context, Epoch: m.Plan.Epoch, Reason: m.Reason, Planner: m.Planner,
		Pinned: pinnedOf(m.Pin), Seen: m.Seen, BytesPerToken: m.BytesPerToken.Float(), LearntBytesPerToken: m.LearntBytesPerToken.Float(),
		EstimateError: m.EstimateError, Refining: m.Refining, Rate: m.Demand.Rate, RefusedShare: m.Demand.RefusedShare, Queue: m.Demand.Queue.Seconds(), Stages: []Stage{},
	}
	out.Scaling = scalingOf(m.Scaling)
	for i, st := range m.Plan.Stages {
		stage := stageOf(i, st)
		if m.StageReasons != nil {
			stage.Reason = ReasonOf(m.StageReasons[i])
		}
		out.Stages = append(out.Stages, stage)
	}
	for _, r := range m.Replicas {
		if r.Stage < 0 {
			out.Unassigned = append(out.Unassigned, replicaOf(r, now))
			continue
		}
		stage := &out.Stages[r.Stage]
		stage.Replicas = append(stage.Replicas, replicaOf(r, now))
	}
	return out
}

func stageOf(i int, st policies.Stage) Stage {
	s := Stage{Name: resources.StageName(i), Low: st.Low, Replicas: []Replica{}}
	if st.High != policies.Unbounded {
		s.High = &st.High
	}
	return s
}

// ReasonOf returns a stage's reason in the form of a Status.
func ReasonOf(r partition.StageReason) *StageReason {
	out := &StageReason{Requests: r.Requests, Tokens: r.Tokens}
	if r.Neighbour >= 0 {
		out.MergedWith = resources.StageName(r.Neighbour)
	}
	if !math.IsInf(r.Rise, 1) {
		out.CostRise = &r.Rise
	}
	return out
}

func replicaOf(r fleet.ReplicaState, now time.Time) Replica {
	out := Replica{
		ID: r.ID, Address: r.Address, Host: r.Host, Health: r.Health.String(), Weight: r.Weight,
		Running: r.Load.Running, Waiting: r.Load.Waiting, Held: r.Load.Held, Capacity: r.Capacity.KV, Promised: r.Load.Promised,
		Iteration: r.Load.Iteration, Connected: r.Connected, Note: r.Note, Drain: drainOf(r),
		Residents: r.Residents, Pinned: r.Pinned, PinnedSeconds: r.PinnedSeconds, Streams: r.Streams,
		Load: r.Estimate.Source.String(), Engine: r.Engine, KnownPrefixes: r.KnownPrefixes,
	}
	if e := r.Load.Engine; e != (policies.EngineLoad{}) {
		out.EngineLoad = &EngineLoad{e.Capacity, e.KVUsed, e.Running, e.Waiting, e.Preemptions}
	}
	if r.Estimate.Visible {
		out.ProxyRequests = &r.Estimate.Requests
	}
	if r.Prefill {
		out.Role = "prefill"
	}
	out.Reason, out.HealthReason = r.Reason, r.HealthReason
	if !r.HealthSince.IsZero() {
		out.HealthSeconds = now.Sub(r.HealthSince).Seconds()
	}
	out.Transports = r.Routes
	if !r.Reported.IsZero() {
		age := now.Sub(r.Reported).Seconds()
		out.ReportAge = &age
	}
	return out
}

// drainOf lists what drains a replica.
func drainOf(r fleet.ReplicaState) (by []string) {
	if r.Draining {
		by = append(by, "file")
	}
	if r.Drained {
		by = append(by, "operator")
	}
	if r.Stopping {
		by = append(by, "migrator")
	}
	return by
}
