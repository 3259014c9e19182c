package market

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/internal/candidates"
	"github.com/cascadeinfer/cascade/migrator/internal/loadview"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// scan measures this replica's position, cancels stale sales and offers new ones.
func (m *Market) scan() {
	m.mu.Lock()
	view := m.view
	m.mu.Unlock()
	now, load, residents, ready := m.now(), m.cfg.Load(), m.cfg.Residents(), m.cfg.Ready()
	m.leaving = view.Draining || view.Retired || !ready
	capacity := m.capacity(load)
	m.position = policies.Occupancy{
		Capacity: capacity, Held: load.KV(), Promised: load.Promised, Throughput: m.throughput.rate(), Draining: m.leaving || !m.cfg.CanReceive(),
	}
	m.step(bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: m.position})
	m.loads.SetOwnLoad(loadview.Load{Waiting: load.Promised, Total: load.Held + load.Promised + m.machine.Incoming(), Held: load.Held, Draining: m.leaving})
	mean, meanKnown := m.stageMean(now, &view)

	s := &candidates.Situation{
		Now: now, Plan: view.Plan, Available: func(id policies.ReplicaID) bool { return m.loads.Available(now, id) },
		Draining: view.Draining, Capacity: capacity, KV: load.KV(), Held: load.Held, Promised: load.Promised, Mean: mean, MeanKnown: meanKnown,
	}
	here := m.buildResidents(s, residents)
	m.recordResidents(residents, load)
	m.cancelStaleSales(s, here)
	if !ready {
		return // the requests are lost; their front ends rescue them
	}
	for _, o := range m.selector.SelectOffers(s, m.cfg.MaxOffers-len(m.sales)) {
		m.sales[o.Handover.Request] = &sale{handover: o.Handover}
		m.countOffer(o.Handover.Cause)
		m.step(bidask.Event{Kind: bidask.Offered, Migration: o.Handover, Candidates: o.Candidates, Costs: m.migrationCosts(o), Seed: m.rng.Uint64()})
	}
}

// capacity returns the size of the KV cache: by the engine's report, else by Config.
func (m *Market) capacity(load policies.Load) policies.Tokens {
	return cmp.Or(load.Engine.Capacity, m.cfg.Capacity)
}

// stageMean returns the mean load of this replica's stage, by its peers' summaries or else by
// the control plane's last reply. Without a recent one it is unknown: the stage may have changed
// since, and a replica that compares itself with an old mean sells what its peers cannot take.
func (m *Market) stageMean(now policies.Micros, view *View) (mean policies.Tokens, ok bool) {
	if mean, ok := m.loads.StageMean(now); ok {
		return mean, true
	}
	recent := !view.MeanAt.IsZero() && now-micros(view.MeanAt.Sub(m.start)) <= micros(m.cfg.SummaryMaxAge)
	return view.StageMean, recent
}

// migrationCosts returns the costs of an offer's candidates, or nil if unknown.
func (m *Market) migrationCosts(o candidates.Offer) []policies.Micros {
	if m.cfg.MigrationCost == nil {
		return nil
	}
	out := make([]policies.Micros, len(o.Candidates))
	for i, id := range o.Candidates {
		out[i] = m.cfg.MigrationCost(id, o.Handover.Length)
	}
	return out
}

// buildResidents converts the local legs to the residents of package candidates. It leaves
// out requests without a token, which have nothing to migrate. It returns the IDs of all
// requests that are here.
func (m *Market) buildResidents(s *candidates.Situation, residents []frontend.LocalLeg) map[string]bool {
	here := make(map[string]bool, len(residents))
	s.Residents = make([]candidates.Resident, 0, len(residents))
	for _, r := range residents {
		id := r.Request.ID
		here[id] = true
		if until, ok := m.departed[id]; ok && s.Now < until || r.Request.Output == 0 {
			continue
		}
		s.Residents = append(s.Residents, candidates.Resident{
			Request: id, Length: r.Request.Length(), Pinned: r.Pinned, Epoch: r.Epoch, Since: micros(r.Since.Sub(m.start)), ForSale: m.sales[id] != nil,
			CanRunOn: m.loads.ServesModel(r.Request.Model),
		})
	}
	for id, until := range m.departed {
		if !here[id] || s.Now >= until {
			delete(m.departed, id)
		}
	}
	return here
}

// cancelStaleSales withdraws offers of requests that have ended and offers that no longer have a
// reason. The Executor handles requests whose transfer runs.
func (m *Market) cancelStaleSales(s *candidates.Situation, here map[string]bool) {
	var over []policies.Migration
	for id, sale := range m.sales {
		if !sale.exporting && (!here[id] || !m.selector.StillValid(s, sale.handover)) {
			over = append(over, sale.handover)
		}
	}
	for _, h := range over {
		m.step(bidask.Event{Kind: bidask.Withdrawn, Migration: h})
	}
}

// sendSummaries sends this replica's load to samples of its stage, of the stage before it and
// of all others. While boundaries are refined, the stage before also gets the running requests.
func (m *Market) sendSummaries() {
	m.mu.Lock()
	retired := m.view.Retired
	m.mu.Unlock()
	if retired {
		return
	}
	load := m.cfg.Load()
	m.summarySequence++
	summary := &api.Summary{
		Sequence: m.summarySequence, Held: int64(load.Held), Promised: int64(load.Promised), Incoming: int64(m.machine.Incoming()),
		Capacity: int64(m.capacity(load)), Draining: m.leaving, Running: uint32(load.Running), Waiting: uint32(load.Waiting),
	}
	stage, before, others := m.loads.Neighbours()
	m.sendSummary(stage, summary)
	m.sendSummary(others, summary)
	if m.cfg.Refiner != nil && len(before) > 0 {
		summary = proto.CloneOf(summary)
		summary.Inputs, summary.Lengths = encodeSequences(m.runningSequences())
	}
	m.sendSummary(before, summary)
}

// sendSummary sends a summary to a sample of peers.
func (m *Market) sendSummary(ids []policies.ReplicaID, s *api.Summary) {
	ids = m.sampleIDs(ids, m.cfg.SampleSize)
	m.mu.Lock()
	m.counts.summariesSent += uint64(len(ids))
	m.mu.Unlock()
	body := &api.Envelope_Summary{Summary: s}
	for _, id := range ids {
		m.cfg.Network.Send(id, &api.Envelope{Body: body})
	}
}

// runningSequences returns the requests that run here.
func (m *Market) runningSequences() []policies.Sequence {
	residents := m.cfg.Residents()
	out := make([]policies.Sequence, len(residents))
	for i, r := range residents {
		out[i] = policies.Sequence{Input: r.Request.Input, Length: r.Request.Length()}
	}
	return out
}
