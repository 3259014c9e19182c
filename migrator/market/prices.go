package market

import (
	"cmp"
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// arrivals are the requests that this replica has accepted and its peers do not know yet.
type arrivals struct {
	requests []place.Waiting
	from     []policies.ReplicaID // the front end of each
}

// maxArrivals bounds the arrivals between two messages: beyond it, the next Summary has to do.
const maxArrivals = 256

// LegBegan implements frontend.LegObserver: from now on the request counts in the prices of this replica, here
// and, within arrivalsInterval, at its peers.
func (m *Market) LegBegan(leg *frontend.LocalLeg) {
	if m.cfg.Engine == nil {
		return
	}
	now := m.now()
	var state place.State
	m.peers.do(func(v *place.Peers) {
		v.DescribeOwn(&state, []place.Resident{m.resident(leg)})
		if leg.FrontEnd != m.cfg.Self {
			v.AddArrivals(now, m.cfg.Self, state.Waiting)
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(state.Waiting) == 1 && len(m.arrived.requests) < maxArrivals {
		m.arrived.requests = append(m.arrived.requests, state.Waiting[0])
		m.arrived.from = append(m.arrived.from, leg.FrontEnd)
	}
	select {
	case m.arrival <- struct{}{}:
	default:
	}
}

// LegEnded implements frontend.LegObserver: the market learns how many tokens requests generate.
func (m *Market) LegEnded(leg *frontend.LocalLeg) {
	if m.cfg.Engine == nil {
		return
	}
	r := &leg.Request
	prompts, sequences := policies.Tokens(max(r.Prompts, 1)), policies.Tokens(max(r.Sequences, 1))
	m.peers.do(func(v *place.Peers) { v.ObserveEnd(r.Input/prompts, r.Output/sequences) })
}

// resident describes a leg on the own engine.
func (m *Market) resident(leg *frontend.LocalLeg) place.Resident {
	r := &leg.Request
	return place.Resident{
		Input: r.Input, Cached: r.Cached, Output: r.Output, MaxOutput: r.MaxOutput, Prompts: r.Prompts, Sequences: r.Sequences,
		Arrived: micros(leg.Since.Sub(m.start)),
		// Until its first token here, a request whose engine was lost computes its KV again. One that has moved with
		// its KV gets that token an iteration later.
		Prefilling: leg.Last.IsZero(),
	}
}

// maxStateAge bounds the time for which an engine without tokens is taken to go on: one that hangs is not idle soon.
const maxStateAge = policies.Second

// updateOwnState sets the state by which requests are priced at this replica.
func (m *Market) updateOwnState(legs []frontend.LocalLeg, load policies.Load) {
	if m.cfg.Engine == nil {
		return
	}
	slices.SortFunc(legs, func(a, b frontend.LocalLeg) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	m.living = m.living[:0]
	now := m.now()
	m.state.At = 0
	for i := range legs {
		m.living = append(m.living, m.resident(&legs[i]))
		if last := legs[i].Last; !last.IsZero() {
			m.state.At = max(m.state.At, micros(last.Sub(m.start)))
		}
	}
	if m.state.At == 0 {
		m.state.At = now
	}
	m.state.At = max(m.state.At, now-maxStateAge)
	m.state.Used = load.Engine.KVUsed
	m.peers.do(func(v *place.Peers) {
		v.DescribeOwn(&m.state, m.living)
		m.state.Compact()
		v.SetOwnState(now, &m.state, m.living)
	})
}

// encodeState adds the own state to a summary.
func (m *Market) encodeState(s *api.Summary) {
	if m.cfg.Engine == nil {
		return
	}
	now := m.now()
	s.Used, s.AgeMicros = int64(m.state.Used), int64(now-m.state.At)
	s.IterationMicros = uint32(min(m.state.Iteration*1e6, math.MaxUint32))
	for i := range m.state.Running {
		g := &m.state.Running[i]
		s.Groups = append(s.Groups, &api.RunningGroup{
			Count: int64(g.Count), Length: int64(g.Length), Longest: int64(g.Longest), Remaining: int64(g.Remaining),
			Weight: float32(g.Weight),
		})
	}
	for i := range m.state.Waiting {
		s.Prompts = append(s.Prompts, encodeWaiting(now, &m.state.Waiting[i]))
	}
}

func encodeWaiting(now policies.Micros, w *place.Waiting) *api.WaitingRequest {
	length := min(int64(w.Length), maxClaimedPrompt)
	return &api.WaitingRequest{
		Length: length, Cached: min(int64(w.Cached), length), Output: int64(w.Output),
		AgeMicros: min(int64(now-w.Ready), maxClaimedAge),
		Weight:    float32(w.Weight), FirstWeight: float32(w.FirstWeight),
	}
}

// sendArrivals sends the peers what this replica has accepted.
func (m *Market) sendArrivals() {
	m.mu.Lock()
	arrived, retired := m.arrived, m.view.Retired
	m.arrived = arrivals{}
	m.mu.Unlock()
	if retired || len(arrived.requests) == 0 {
		return
	}
	var stage, before, others []policies.ReplicaID
	m.peers.do(func(v *place.Peers) { stage, before, others = v.SampleNeighbours() })
	now := m.now()
	for _, ids := range [...][]policies.ReplicaID{stage, before, others} {
		for _, id := range ids {
			message := &api.Arrivals{}
			for i := range arrived.requests {
				if arrived.from[i] != id {
					message.Requests = append(message.Requests, encodeWaiting(now, &arrived.requests[i]))
				}
			}
			if len(message.Requests) > 0 {
				m.cfg.Network.Send(id, &api.Envelope{Body: &api.Envelope_Arrivals{Arrivals: message}})
			}
		}
	}
}

// ReceiveArrivals handles the requests that a peer has accepted.
func (m *Market) ReceiveArrivals(from policies.ReplicaID, a *api.Arrivals) {
	now := m.now()
	waiting, ok := decodeWaiting(now, a.GetRequests(), maxArrivals)
	if !ok {
		m.mu.Lock()
		m.status.Ignored++
		m.mu.Unlock()
		return
	}
	m.peers.do(func(v *place.Peers) { v.AddArrivals(now, from, waiting) })
}

// Bounds of what a peer may claim. A price takes a step per chunk of the prompts, so that these are bounded, too.
const (
	maxClaimedPrompt = 1 << 21
	maxClaimedTokens = 1 << 30
	maxClaimedAge    = int64(3600 * policies.Second)
	maxClaimedCount  = 1 << 20
	maxClaimedWeight = 1 << 20
)

// decodeState returns the state in a peer's summary; false if it is invalid.
func decodeState(now policies.Micros, s *api.Summary) (state place.State, ok bool) {
	if len(s.GetGroups()) > place.MaxGroups || !within(s.GetUsed(), 0, maxClaimedTokens) ||
		!within(s.GetAgeMicros(), 0, maxClaimedAge) {
		return state, false
	}
	state.At, state.Used = now-policies.Micros(s.GetAgeMicros()), policies.Tokens(s.GetUsed())
	state.Iteration = float64(s.GetIterationMicros()) * 1e-6
	for _, g := range s.GetGroups() {
		if !within(g.GetCount(), 1, maxClaimedCount) || !within(g.GetLength(), 0, maxClaimedTokens) ||
			!within(g.GetLongest(), 0, g.GetLength()) || !within(g.GetRemaining(), 0, maxClaimedTokens) ||
			!validWeight(g.GetWeight()) {
			return state, false
		}
		state.Running = append(state.Running, place.Running{
			Count: int(g.GetCount()), Length: policies.Tokens(g.GetLength()), Longest: policies.Tokens(g.GetLongest()),
			Remaining: policies.Tokens(g.GetRemaining()), Weight: float64(g.GetWeight()),
		})
	}
	if state.Waiting, ok = decodeWaiting(now, s.GetPrompts(), place.MaxWaiting); !ok {
		return state, false
	}
	if len(state.Running)+len(state.Waiting) == 0 {
		assumeState(&state, s)
	}
	return state, true
}

// assumeState sets the state of a peer that counts requests but describes none, because it places by load: it is
// not idle. Its counts are valid or the summary is ignored.
func assumeState(state *place.State, s *api.Summary) {
	n := min(int64(s.GetRunning()), maxClaimedCount)
	if held := min(s.GetHeld(), maxClaimedTokens); n > 0 && held > 0 {
		state.Running = []place.Running{{
			Count: int(n), Length: policies.Tokens(held), Longest: policies.Tokens(held / n),
			Remaining: place.DefaultOutput, Weight: float64(n) / float64(place.DefaultOutput),
		}}
	}
	if waits := min(s.GetPromised()-s.GetCached(), maxClaimedPrompt); waits > 0 {
		state.Waiting = []place.Waiting{place.Waiting{Length: policies.Tokens(waits)}.Weigh(place.DefaultOutput)}
	}
}

// decodeWaiting returns at most so many requests that wait; false if one is invalid.
func decodeWaiting(now policies.Micros, requests []*api.WaitingRequest, most int) ([]place.Waiting, bool) {
	if len(requests) > most {
		return nil, false
	}
	out := make([]place.Waiting, 0, len(requests))
	for _, w := range requests {
		if !within(w.GetLength(), 0, maxClaimedPrompt) || !within(w.GetCached(), 0, w.GetLength()) ||
			!within(w.GetOutput(), 0, maxClaimedTokens) || !within(w.GetAgeMicros(), -maxClaimedAge, maxClaimedAge) ||
			!validWeight(w.GetWeight()) || !validWeight(w.GetFirstWeight()) {
			return nil, false
		}
		out = append(out, place.Waiting{
			Length: policies.Tokens(w.GetLength()), Cached: policies.Tokens(w.GetCached()),
			Output: policies.Tokens(w.GetOutput()), Ready: now - policies.Micros(w.GetAgeMicros()),
			Weight: float64(w.GetWeight()), FirstWeight: float64(w.GetFirstWeight()),
		})
	}
	return out, true
}

func within(n, least, most int64) bool { return least <= n && n <= most }

func validWeight(w float32) bool {
	return w >= 0 && w <= maxClaimedWeight // false for what is no number
}
