package market

import (
	"math"

	"github.com/cascadeinfer/cascade/migrator/api"
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

// buildBorder combines the residents with the requests of the next stage: those that its
// replicas have sent, or else what the control plane knows of them, which is each bucket's mean.
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
	b.Local = m.runningSequences()
	if running, replicas := m.loads.Successors(m.now()); replicas > 0 {
		b.Next = extendSet(running, replicas, b.Successors)
	}
	return b, true
}

// extendSet returns the requests that all replicas of a stage run, if heard of them run the
// given ones and the others as many alike, up to maxSequences.
func extendSet(running []policies.Sequence, heard, all int) []policies.Sequence {
	n := len(running)
	for more := min(n*max(all-heard, 0)/heard, maxSequences-n); more > 0; more-- {
		running = append(running, running[len(running)-n])
	}
	return running
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
