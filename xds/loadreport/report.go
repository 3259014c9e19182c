// Package loadreport decodes the load reports that migrators send to the control plane,
// and encodes the replies. Decode checks a message and returns a Report whose values
// are within bounds, though not necessarily true (see balance.Estimator).
//
// The client side is package migrator/loadreport, the messages are in package api.
package loadreport

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Bounds of a load report. They are far above what an engine can reach and low enough
// that the sums over a fleet stay exact: a figure beyond them is a bug or false. Decode
// documents which figures it bounds and which it refuses.
const (
	MaxName          = 256     // bytes of a replica's or a model's name
	MaxEdges         = 1024    // length buckets
	maxCount         = 1 << 24 // requests running or waiting
	MaxTokens        = 1 << 40 // tokens held or promised, and the largest bucket edge
	MaxRate          = 1e18    // any rate per second and any batch sum
	maxIteration     = 3600    // seconds of one iteration
	minIteration     = 1e-9    // of one that is known: its inverse is a rate of tokens
	MaxSeen          = 1 << 50 // requests counted or refused by one front end
	MaxBytesPerToken = 64
	maxDuration      = 1 << 25 // seconds that a request may last: a year
)

// Report is the present state of one replica as its migrator reports it.
//
// Invariants, which Decode establishes:
//  1. Replica and Model are not empty and at most 256 bytes long,
//  2. Load and, unless it has no edges at all, Flow are valid and within the
//     bounds of this package,
//  3. Snapshot is empty or has one valid Batch per edge of Flow,
//  4. BytesPerToken and EstimateError are finite and not negative,
//  5. Proposal is zero or has 0 ≤ Low < Boundary, and the numbers of DrainProgress
//     are not negative,
//  6. Migrations has at most 64, all valid and begun by the replica,
//  7. Routes has at most 32, all valid, and Slots at most 16,
//  8. Site is nil or valid.
type Report struct {
	Replica  policies.ReplicaID
	Model    string
	Sequence uint64
	Load     policies.Load
	Flow     policies.Flow // no edges: nothing counted yet
	Snapshot []policies.Batch
	// EngineReady is false while the engine does not answer health checks.
	EngineReady bool
	// EngineHung is true while it is not ready because it makes no progress.
	EngineHung bool
	// Engine is what the engine says of itself, and EngineProblem why one that answers is
	// not ready: it is not the one that the configuration says.
	Engine        Engine
	EngineProblem string
	// Draining is true once the migrator accepts no new request.
	Draining bool
	// BytesPerToken is learnt from exact counts; 0 when there were none.
	BytesPerToken float64
	// EstimateError is the mean relative error of the length estimate.
	EstimateError float64
	// Proposal is the end of its stage that the replica's refiner proposes; the
	// zero value when there is none.
	Proposal partition.BoundaryProposal
	// DrainProgress is the progress of a drain.
	DrainProgress DrainProgress
	// Migrations are those that the replica began.
	Migrations []Migration
	// Routes are the transports that the replica can pull blocks by, best first, then
	// the state of each by peer.
	Routes []Route
	// Slots is the state of the host's policy slots.
	Slots []lifecycle.SlotStatus
	// Topology is where the replica's KV cache is and which links it has; nil means that
	// the last reported one is still valid. It is shared and must not be changed.
	Topology *links.Topology
	// Problems are what the migrator lacks, at most 8.
	Problems []Problem
	// KnownPrefixes is what is known of the prompts that the engine has cached.
	KnownPrefixes KnownPrefixes
	// Refused counts the requests of clients that this process of the front end has refused, because they
	// would have waited for too long.
	Refused uint64
	// Service is how the clients of this process of the front end were served.
	Service Service
	// LoadBounded says that Decode had to bound figures of Load that requests cannot
	// push out of bounds: counts, and the tokens held.
	LoadBounded bool
	// Note says which figures Decode bounded or dropped; usually empty.
	Note string
}

// DrainProgress is what a replica still has to migrate or to finish before it is
// empty.
type DrainProgress struct {
	Residents int // requests that run here
	Pinned    int // those of them that cannot be migrated
	// PinnedSeconds is the time until the last pinned one is expected to end; 0 when
	// unknown or none.
	PinnedSeconds float64
	Streams       int // of its own clients, wherever their requests run
}

// Decode checks a message and returns a Report that shares the message's slices. The
// error names the field.
//
// A load or a bytes_per_token out of bounds is bounded and noted, not refused: the
// requests of clients affect them, and no request must be able to end its replica's
// stream. Names, flows and snapshots depend only on the front end.
func Decode(m *api.LoadReport) (Report, error) {
	r := Report{
		Replica:       policies.ReplicaID(m.GetReplica()),
		Model:         m.GetModel(),
		Sequence:      m.GetSequence(),
		EngineReady:   m.GetEngineReady(),
		EngineHung:    m.GetEngineHung(),
		Engine:        decodeEngine(m.GetEngine()),
		EngineProblem: cleantext.Printable(m.GetEngineProblem(), maxReason),
		Draining:      m.GetDraining(),
		BytesPerToken: m.GetBytesPerToken(),
		EstimateError: m.GetEstimateError(),
		KnownPrefixes: decodeKnownPrefixes(m.GetKnownPrefixes()),
		Refused:       min(m.GetRequestsRefused(), MaxSeen),
		Service:       decodeService(m.GetService()),
	}
	switch {
	case r.Replica == "" || len(r.Replica) > MaxName:
		return Report{}, fmt.Errorf("replica: must have 1 to %d bytes, got %d", MaxName, len(r.Replica))
	case r.Model == "" || len(r.Model) > MaxName:
		return Report{}, fmt.Errorf("model: must have 1 to %d bytes, got %d", MaxName, len(r.Model))
	case !Within(r.EstimateError, MaxRate):
		return Report{}, fmt.Errorf("estimate_error: %v is not a relative error", r.EstimateError)
	}
	var bounded []string
	r.Load, bounded = decodeLoad(m.GetLoad())
	r.LoadBounded = slices.ContainsFunc(bounded, func(field string) bool {
		return field == "running" || field == "waiting" || field == "held_tokens"
	})
	if x := r.BytesPerToken; !Within(x, MaxBytesPerToken) {
		r.BytesPerToken = 0 // it must not be served
		bounded = append(bounded, "bytes_per_token")
	}
	r.DrainProgress = decodeDrainProgress(m, &bounded)
	r.Proposal = decodeProposal(m.GetProposal())
	var dropped int
	if r.Migrations, dropped = DecodeMigrations(r.Replica, m.GetMigrations()); dropped > 0 {
		bounded = append(bounded, "migrations")
	}
	if r.Routes, dropped = decodeRoutes(m.GetRoutes()); dropped > 0 {
		bounded = append(bounded, "routes")
	}
	if r.Slots, dropped = policyslots.DecodeStatuses(m.GetSlots()); dropped > 0 {
		bounded = append(bounded, "slots")
	}
	if r.Problems, dropped = decodeProblems(m.GetProblems()); dropped > 0 {
		bounded = append(bounded, "problems")
	}
	if m.GetTopology() != nil {
		if t, err := DecodeTopology(m.GetTopology()); err == nil {
			r.Topology = &t
		} else {
			r.Topology = &links.Topology{} // the last reported topology is no longer valid
			bounded = append(bounded, "topology")
		}
	}
	if len(bounded) > 0 {
		r.Note = "reported out of bounds, and bounded: " + strings.Join(bounded, ", ")
	}
	var err error
	if r.Flow, err = decodeFlow(m.GetFlow()); err != nil {
		return Report{}, fmt.Errorf("flow: %w", err)
	}
	if r.Snapshot, err = decodeSnapshot(m.GetSnapshot(), len(r.Flow.Edges)); err != nil {
		return Report{}, fmt.Errorf("snapshot: %w", err)
	}
	return r, nil
}

// decodeDrainProgress bounds the figures of a drain's progress, which are only
// informative.
func decodeDrainProgress(m *api.LoadReport, bounded *[]string) DrainProgress {
	out := DrainProgress{PinnedSeconds: m.GetPinnedSeconds()}
	for _, c := range [...]struct {
		name string
		n    uint32
		to   *int
	}{{"residents", m.GetResidents(), &out.Residents}, {"pinned", m.GetPinned(), &out.Pinned}, {"streams", m.GetStreams(), &out.Streams}} {
		if c.n > maxCount {
			*bounded = append(*bounded, c.name)
		}
		*c.to = int(min(c.n, maxCount))
	}
	if !Within(out.PinnedSeconds, maxDuration) {
		*bounded = append(*bounded, "pinned_seconds")
		out.PinnedSeconds = 0
	}
	return out
}

// decodeProposal drops a proposal that is for no boundary.
func decodeProposal(m *api.Proposal) partition.BoundaryProposal {
	p := partition.BoundaryProposal{Epoch: policies.Epoch(m.GetEpoch()), Low: policies.Tokens(m.GetLow()), Boundary: policies.Tokens(m.GetBoundary())}
	if p.Low < 0 || p.Boundary <= p.Low {
		return partition.BoundaryProposal{}
	}
	return p
}

// decodeLoad returns the load within the bounds, and the names of the fields that were
// out of bounds.
func decodeLoad(m *api.Load) (l policies.Load, bounded []string) {
	count := func(name string, n uint32) int {
		if n > maxCount {
			bounded = append(bounded, name)
		}
		return int(min(n, maxCount))
	}
	tokens := func(name string, n int64) policies.Tokens {
		if n < 0 || n > MaxTokens {
			bounded = append(bounded, name)
		}
		return policies.Tokens(min(max(n, 0), MaxTokens))
	}
	l = policies.Load{
		Running:   count("running", m.GetRunning()),
		Waiting:   count("waiting", m.GetWaiting()),
		Held:      tokens("held_tokens", m.GetHeldTokens()),
		Promised:  tokens("promised_tokens", m.GetPromisedTokens()),
		Iteration: m.GetIterationSeconds(),
	}
	if !Within(l.Iteration, maxIteration) || l.Iteration > 0 && l.Iteration < minIteration {
		bounded = append(bounded, "iteration_seconds")
		l.Iteration = 0 // unknown
	}
	if e := m.GetEngine(); e != nil {
		l.Engine = policies.EngineLoad{
			Capacity: tokens("engine.capacity_tokens", e.GetCapacityTokens()),
			KVUsed:   tokens("engine.kv_used_tokens", e.GetKvUsedTokens()),
			Running:  count("engine.running", e.GetRunning()), Waiting: count("engine.waiting", e.GetWaiting()),
			Preemptions: e.GetPreemptions(),
		}
		l.Engine.KVUsed = min(l.Engine.KVUsed, l.Engine.Capacity)
	}
	return l, bounded
}

func decodeSnapshot(list []*api.Batch, buckets int) ([]policies.Batch, error) {
	if len(list) == 0 {
		return nil, nil
	}
	if len(list) != buckets {
		return nil, fmt.Errorf("%d batches for %d buckets of the flow", len(list), buckets)
	}
	out := make([]policies.Batch, len(list))
	for i, b := range list {
		out[i] = policies.Batch{N: b.GetN(), SumI: b.GetSumInput(), SumI2: b.GetSumInput2(), SumL: b.GetSumLength()}
		for _, x := range [...]float64{out[i].N, out[i].SumI, out[i].SumI2, out[i].SumL} {
			if !Within(x, MaxRate) {
				return nil, fmt.Errorf("batch %d: %v is not a sum over requests", i, x)
			}
		}
	}
	return out, nil
}

// Within reports whether x is a number in [0, limit]; NaN is in no range.
func Within(x, limit float64) bool { return x >= 0 && x <= limit }
