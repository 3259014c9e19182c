package market

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// Proposal returns where this replica would put the end of its stage. It returns nil while the
// control plane does not ask for proposals.
func (m *Market) Proposal() *xds.Proposal {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proposal
}

// updateProposal makes a proposal if the control plane asks for one.
func (m *Market) updateProposal() {
	m.mu.Lock()
	ask := m.view.Refine
	m.mu.Unlock()
	var p *xds.Proposal
	if border, ok := m.buildBorder(ask); ok {
		p = &xds.Proposal{Epoch: ask.GetEpoch(), Low: int64(border.Low), Boundary: int64(m.cfg.Refiner.Refine(border))}
	}
	m.mu.Lock()
	m.proposal = p
	m.mu.Unlock()
}

// buildBorder combines the residents with the control plane's data about the next stage.
// It returns false if the control plane does not ask or its data is invalid.
func (m *Market) buildBorder(ask *xds.Refine) (policies.BoundaryView, bool) {
	if ask == nil || m.cfg.Refiner == nil {
		return policies.BoundaryView{}, false
	}
	b := policies.BoundaryView{
		Low: policies.Tokens(ask.GetLow()), Boundary: policies.Tokens(ask.GetBoundary()), High: policies.Tokens(ask.GetHigh()),
		Peers: int(ask.GetPeers()), Successors: int(ask.GetSuccessors()), QoE: m.cfg.QoE, Next: sequences(ask.GetNext()),
	}
	if b.High == 0 {
		b.High = policies.Unbounded
	}
	if b.Low < 0 || b.Low >= b.Boundary || b.Boundary >= b.High || b.Peers < 1 || b.Successors < 1 {
		return policies.BoundaryView{}, false
	}
	for _, r := range m.cfg.Residents() {
		b.Local = append(b.Local, policies.Sequence{Input: r.Request.Input, Length: r.Request.Length()})
	}
	return b, true
}

// sequences expands each bucket's batch to as many sequences of its mean lengths, scaled
// down to at most maxSequences.
func sequences(batches []*xds.Batch) []policies.Sequence {
	total := 0.0
	for _, b := range batches {
		if validBatch(b) {
			total += b.GetN()
		}
	}
	share := min(1, maxSequences/max(total, 1))
	var out []policies.Sequence
	for _, b := range batches {
		if !validBatch(b) {
			continue
		}
		s := policies.Sequence{Input: policies.Tokens(math.Round(b.GetSumInput() / b.GetN())), Length: policies.Tokens(math.Round(b.GetSumLength() / b.GetN()))}
		for range int(math.Round(b.GetN() * share)) {
			out = append(out, s)
		}
	}
	return out
}

// validBatch reports whether a batch is not empty and its numbers are usable.
func validBatch(b *xds.Batch) bool {
	const most = 1 << 50
	return b.GetN() > 0 && b.GetN() < most && b.GetSumInput() >= 0 && b.GetSumLength() >= 0 &&
		b.GetSumInput()/b.GetN() < most && b.GetSumLength()/b.GetN() < most
}
