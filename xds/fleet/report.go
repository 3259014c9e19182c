package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/topology"
)

// Bounds of a load report. They are far above what an engine can do and low
// enough that the sums over a fleet stay exact numbers: what is outside them is
// a bug or a lie. Decode says what it bounds and what it refuses.
const (
	maxName     = 256     // bytes of a replica's or a model's name
	maxEdges    = 1024    // length buckets
	maxCount    = 1 << 24 // requests running or waiting
	maxTokens   = 1 << 40 // tokens held or promised, and the largest bucket edge
	maxRate     = 1e18    // any rate per second and any batch sum
	maxSeconds  = 3600    // one iteration
	maxSeen     = 1 << 50 // requests counted by one front
	maxBytesPer = 64      // bytes per token
	maxStream   = 1 << 25 // seconds that a request may last: a year
)

// Report is the present state of one replica, as its migrator tells it and
// Decode checked it.
//
// Invariants, which Decode establishes:
//  1. Replica and Model are not empty and at most 256 bytes long,
//  2. Load and, unless it has no edges at all, Flow are valid and within the
//     bounds of this package,
//  3. Snapshot is empty or has one valid Batch per edge of Flow,
//  4. BytesPerToken and EstimateError are finite and not negative,
//  5. Proposal is zero or has 0 ≤ Low < Boundary, and the numbers of Settling
//     are not negative,
//  6. Moves has at most 64, all valid and the replica's own to tell,
//  7. Routes has at most 32, all valid, and Policies at most 16,
//  8. Site is nil or valid.
type Report struct {
	Replica  policies.ReplicaID
	Model    string
	Sequence uint64
	Load     policies.Load
	Flow     policies.Flow // no edges: nothing counted yet
	Snapshot []policies.Batch
	// EngineReady is false while the engine does not answer its health check.
	EngineReady bool
	// Draining is true once the migrator takes no new request.
	Draining bool
	// BytesPerToken is learnt from exact counts; 0 when there were none.
	BytesPerToken float64
	// EstimateError is the mean relative error of the length estimate.
	EstimateError float64
	// Proposal is where the replica's refiner would put the end of its stage;
	// the zero value when there is none.
	Proposal Vote
	// Settling is how far a drain has come.
	Settling Settling
	// Moves are the migrations that the replica tells of.
	Moves []Move
	// Routes are the transports by which blocks may come, best first, then how
	// they did peer by peer.
	Routes []Route
	// Policies is the state of the host's policy slots.
	Policies []policyslots.Status
	// Site is where the replica's KV cache is and what leads away from there; nil:
	// what was told before stands. It is shared and must not be changed.
	Site *links.Topology
	// LoadBounded says that Decode had to bound figures of Load that no request
	// can drive out of bounds: counts, and the tokens held.
	LoadBounded bool
	// Note says which figures Decode bounded or dropped; usually empty.
	Note string
}

// Settling is what a replica has left to move or to end before it is empty.
type Settling struct {
	Residents int // requests that run here
	Pinned    int // those of them that may not move
	// PinnedSeconds is until the last pinned one is expected to end; 0 when
	// unknown or none.
	PinnedSeconds float64
	Streams       int // of its own clients, wherever their requests run
}

// Decode checks a message and turns it into a Report that shares the
// message's slices. The error names the field.
//
// A load or a bytes_per_token out of bounds is bounded and noted, not refused:
// what a client asks for is part of them, and no request may be able to end its
// replica's session. Names, flows and snapshots are the front's own.
func Decode(m *api.LoadReport) (Report, error) {
	r := Report{
		Replica:       policies.ReplicaID(m.GetReplica()),
		Model:         m.GetModel(),
		Sequence:      m.GetSequence(),
		EngineReady:   m.GetEngineReady(),
		Draining:      m.GetDraining(),
		BytesPerToken: m.GetBytesPerToken(),
		EstimateError: m.GetEstimateError(),
	}
	switch {
	case r.Replica == "" || len(r.Replica) > maxName:
		return Report{}, fmt.Errorf("replica: want 1 to %d bytes, got %d", maxName, len(r.Replica))
	case r.Model == "" || len(r.Model) > maxName:
		return Report{}, fmt.Errorf("model: want 1 to %d bytes, got %d", maxName, len(r.Model))
	case !within(r.EstimateError, maxRate):
		return Report{}, fmt.Errorf("estimate_error: %v is not a relative error", r.EstimateError)
	}
	var bounded []string
	r.Load, bounded = decodeLoad(m.GetLoad())
	r.LoadBounded = slices.ContainsFunc(bounded, func(field string) bool {
		return field == "running" || field == "waiting" || field == "held_tokens"
	})
	if x := r.BytesPerToken; !within(x, maxBytesPer) {
		r.BytesPerToken = 0 // nothing that could be served was learnt
		bounded = append(bounded, "bytes_per_token")
	}
	r.Settling = decodeSettling(m, &bounded)
	r.Proposal = decodeVote(m.GetProposal())
	var dropped int
	if r.Moves, dropped = decodeMoves(r.Replica, m.GetMigrations()); dropped > 0 {
		bounded = append(bounded, "moves")
	}
	if r.Routes, dropped = decodeRoutes(m.GetRoutes()); dropped > 0 {
		bounded = append(bounded, "routes")
	}
	if r.Policies, dropped = policyslots.ReadStatuses(m.GetSlots()); dropped > 0 {
		bounded = append(bounded, "slots")
	}
	if m.GetSite() != nil {
		if where, err := topology.Decode(m.GetSite()); err == nil {
			r.Site = &where
		} else {
			r.Site = &links.Topology{} // what was known before is not true any more
			bounded = append(bounded, "site")
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

// decodeSettling bounds the figures of a drain's progress, which only inform.
func decodeSettling(m *api.LoadReport, bounded *[]string) Settling {
	out := Settling{PinnedSeconds: m.GetPinnedSeconds()}
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
	if !within(out.PinnedSeconds, maxStream) {
		*bounded = append(*bounded, "pinned_seconds")
		out.PinnedSeconds = 0
	}
	return out
}

// decodeVote drops a proposal that is for no boundary.
func decodeVote(m *api.Proposal) Vote {
	v := Vote{Epoch: policies.Epoch(m.GetEpoch()), Low: policies.Tokens(m.GetLow()), Boundary: policies.Tokens(m.GetBoundary())}
	if v.Low < 0 || v.Boundary <= v.Low {
		return Vote{}
	}
	return v
}

// decodeLoad returns the load within the bounds, and the names of the fields
// that were not.
func decodeLoad(m *api.Load) (l policies.Load, bounded []string) {
	count := func(name string, n uint32) int {
		if n > maxCount {
			bounded = append(bounded, name)
		}
		return int(min(n, maxCount))
	}
	tokens := func(name string, n int64) policies.Tokens {
		if n < 0 || n > maxTokens {
			bounded = append(bounded, name)
		}
		return policies.Tokens(min(max(n, 0), maxTokens))
	}
	l = policies.Load{
		Running:   count("running", m.GetRunning()),
		Waiting:   count("waiting", m.GetWaiting()),
		Held:      tokens("held_tokens", m.GetHeldTokens()),
		Promised:  tokens("promised_tokens", m.GetPromisedTokens()),
		Iteration: m.GetIterationSeconds(),
	}
	if !within(l.Iteration, maxSeconds) {
		bounded = append(bounded, "iteration_seconds")
		l.Iteration = 0 // unknown: nobody waits an hour for a token
	}
	return l, bounded
}

func decodeFlow(m *api.Flow) (policies.Flow, error) {
	if len(m.GetEdges()) > maxEdges {
		return policies.Flow{}, fmt.Errorf("edges: more than %d", maxEdges)
	}
	f := policies.Flow{
		Edges:    make([]policies.Tokens, len(m.GetEdges())),
		Arrivals: m.GetArrivals(), Tokens: m.GetTokens(), Reads: m.GetReads(),
		Prefill: m.GetPrefill(), Prefill2: m.GetPrefill2(),
		Weight: m.GetWeight(), Crossings: m.GetCrossings(),
		Seen: m.GetSeen(),
	}
	for i, e := range m.GetEdges() {
		f.Edges[i] = policies.Tokens(e)
	}
	return f, checkFlow(f)
}

// checkFlow says why a flow is invalid or beyond the bounds; one without edges
// is empty and in order.
func checkFlow(f policies.Flow) error {
	if f.Seen > maxSeen {
		return fmt.Errorf("seen: more than %d requests", int64(maxSeen))
	}
	if len(f.Edges) == 0 {
		for _, column := range columns(f) {
			if len(column) > 0 {
				return errors.New("rates without edges")
			}
		}
		return nil
	}
	if len(f.Edges) > maxEdges {
		return fmt.Errorf("edges: more than %d", maxEdges)
	}
	if err := f.Validate(); err != nil {
		return err
	}
	if f.Edges[len(f.Edges)-1] > maxTokens {
		return fmt.Errorf("edges: above %d", int64(maxTokens))
	}
	for _, column := range columns(f) {
		for _, x := range column {
			if x > maxRate {
				return errors.New("a rate is above 1e18 per second")
			}
		}
	}
	return nil
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
			if !within(x, maxRate) {
				return nil, fmt.Errorf("batch %d: %v is not a sum of requests", i, x)
			}
		}
	}
	return out, nil
}

// within says that x is a number in [0, limit]; NaN is in no range.
func within(x, limit float64) bool { return x >= 0 && x <= limit }

// columns lists the rates of a flow.
func columns(f policies.Flow) [7][]float64 {
	return [7][]float64{f.Arrivals, f.Tokens, f.Reads, f.Prefill, f.Prefill2, f.Weight, f.Crossings}
}
