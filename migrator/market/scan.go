package market

import (
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/place"
)

// scan lets the trader examine the requests that run here.
func (m *Market) scan() {
	now, s := m.now(), m.measure()
	m.execute(m.trader.Scan(now, s, m.actions[:0]))
	m.recordResidents(s)
}

// measure returns the present situation of this replica.
func (m *Market) measure() *bidask.Situation {
	m.mu.Lock()
	view := m.view
	m.mu.Unlock()
	legs := m.cfg.Residents()
	s := &bidask.Situation{
		Load: m.cfg.Load(), Capacity: m.cfg.Capacity, Ready: m.cfg.Ready(), CanReceive: m.cfg.CanReceive(),
		Draining: view.Draining, Retired: view.Retired, Plan: view.Plan, Mean: view.StageMean, Priced: m.cfg.Engine != nil,
		MeanKnown: !view.MeanAt.IsZero() && m.now()-micros(view.MeanAt.Sub(m.start)) <= place.MaxAge,
	}
	m.updateOwnState(legs, s.Load)
	m.residents = m.residents[:0]
	m.peers.do(func(v *place.Peers) {
		for i := range legs {
			leg := &legs[i]
			m.residents = append(m.residents, bidask.Resident{
				Request: leg.Request, FrontEnd: leg.FrontEnd, Pinned: leg.Pinned, Epoch: leg.Epoch,
				Since: micros(leg.Since.Sub(m.start)), Waiting: leg.Last.IsZero(), CanRunOn: v.ServesModel(leg.Request.Model),
			})
		}
	})
	s.Residents, m.leaving = m.residents, s.Leaving()
	return s
}

// sendSummaries sends this replica's load, and what it holds, to samples of its stage, of the
// stage before it and of all others. While boundaries are refined, the stage before also gets the running requests.
func (m *Market) sendSummaries() {
	m.mu.Lock()
	retired := m.view.Retired
	m.mu.Unlock()
	if retired {
		return
	}
	load := m.cfg.Load()
	m.updatePrefixes()
	m.sendArrivals()
	m.updateOwnState(m.cfg.Residents(), load)
	m.summarySequence++
	summary := &api.Summary{
		Held: int64(load.Held), Promised: int64(load.Promised), Incoming: int64(m.trader.Incoming()), Draining: m.leaving,
		Running: uint32(load.Running), Cached: int64(load.Cached),
	}
	m.encodeState(summary)
	var stage, before, others []policies.ReplicaID
	m.peers.do(func(v *place.Peers) { stage, before, others = v.SampleNeighbours() })
	m.sendSummary(stage, summary)
	m.sendSummary(others, summary)
	if m.cfg.Refiner != nil && len(before) > 0 {
		summary = proto.CloneOf(summary)
		summary.Inputs, summary.Lengths = encodeSequences(m.runningSequences())
	}
	m.sendSummary(before, summary)
}

// sendSummary sends a summary to peers, with what this replica holds to those that lack it.
func (m *Market) sendSummary(ids []policies.ReplicaID, s *api.Summary) {
	m.mu.Lock()
	m.status.SummariesSent += uint64(len(ids))
	m.mu.Unlock()
	body := &api.Envelope_Summary{Summary: s}
	var full *api.Envelope_Summary
	for _, id := range ids {
		if !m.lacksPrefixes(id) {
			m.cfg.Network.Send(id, &api.Envelope{Body: body})
			continue
		}
		if full == nil {
			full = &api.Envelope_Summary{Summary: proto.CloneOf(s)}
			full.Summary.Prefixes = m.prefixes
		}
		m.cfg.Network.Send(id, &api.Envelope{Body: full})
	}
}

// runningSequences returns the sequences of the requests that run here, maxRunning at most.
func (m *Market) runningSequences() []policies.Sequence {
	residents := m.cfg.Residents()
	out := make([]policies.Sequence, 0, len(residents))
	for _, r := range residents {
		n := max(r.Request.Sequences, 1)
		input := r.Request.Input / policies.Tokens(max(r.Request.Prompts, 1))
		for range min(n, maxRunning-len(out)) {
			out = append(out, policies.Sequence{Input: input, Length: input + r.Request.Output/policies.Tokens(n)})
		}
	}
	return out
}
