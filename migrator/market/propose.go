package market

import (
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
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
	if boundary, ok := m.boundaryView(ask); ok {
		p = &xds.Proposal{Epoch: ask.GetEpoch(), Low: int64(boundary.Low), Boundary: int64(m.cfg.Refiner.Refine(boundary))}
	}
	m.mu.Lock()
	m.proposal = p
	m.mu.Unlock()
}

// boundaryView returns the input of the Refiner. It returns false if the control plane does not
// ask or its data is invalid.
func (m *Market) boundaryView(ask *xds.Refine) (b policies.BoundaryView, ok bool) {
	if ask == nil || m.cfg.Refiner == nil {
		return policies.BoundaryView{}, false
	}
	running := m.runningSequences()
	m.peers.do(func(v *place.Peers) {
		next, known := v.Successors(m.now())
		b, ok = decodeBoundary(ask).View(running, next, known, m.cfg.QoE)
	})
	return b, ok
}

// decodeBoundary returns the boundary that the control plane describes.
func decodeBoundary(m *xds.Refine) partition.Boundary {
	b := partition.Boundary{
		Epoch: policies.Epoch(m.GetEpoch()), At: policies.Tokens(m.GetBoundary()), Low: policies.Tokens(m.GetLow()), High: policies.Tokens(m.GetHigh()),
		Peers: int(m.GetPeers()), Successors: int(m.GetSuccessors()), Next: make([]policies.Batch, len(m.GetNext())),
	}
	if b.High == 0 {
		b.High = policies.Unbounded
	}
	for i, x := range m.GetNext() {
		b.Next[i] = policies.Batch{N: x.GetN(), SumI: x.GetSumInput(), SumI2: x.GetSumInput2(), SumL: x.GetSumLength()}
	}
	return b
}

// maxRunning bounds the requests in a summary.
const maxRunning = 4096

// encodeSequences returns the prompts and the present lengths of requests, of at most maxRunning.
func encodeSequences(running []policies.Sequence) (inputs, lengths []int64) {
	for _, s := range running[:min(len(running), maxRunning)] {
		inputs, lengths = append(inputs, int64(s.Input)), append(lengths, int64(s.Length))
	}
	return inputs, lengths
}

// decodeSequences returns the running requests of a summary, nil if it does not say; false if
// they are invalid.
func decodeSequences(s *api.Summary) ([]policies.Sequence, bool) {
	inputs, lengths := s.GetInputs(), s.GetLengths()
	if len(inputs) != len(lengths) || len(inputs) > maxRunning {
		return nil, false
	}
	if len(inputs) == 0 && s.GetRunning() > 0 {
		return nil, true // they were not sent
	}
	out := make([]policies.Sequence, 0, len(inputs))
	for i, input := range inputs {
		const most = 1 << 40
		if input < 0 || lengths[i] < input || lengths[i] > most {
			return nil, false
		}
		out = append(out, policies.Sequence{Input: policies.Tokens(input), Length: policies.Tokens(lengths[i])})
	}
	return out, true
}
