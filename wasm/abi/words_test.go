package abi

import (
	"fmt"
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// A source makes arguments from a string of bytes, so that one fuzzer serves every kind. It
// makes zeros when the string is used up.
type source struct{ b []byte }

func (s *source) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c
}

func (s *source) below(n int) int { return int(s.byte()) % n }

// word returns any 64-bit number, mostly a small one.
func (s *source) word() uint64 {
	switch s.below(4) {
	case 0:
		return uint64(s.byte())
	case 1:
		return uint64(s.byte())<<8 | uint64(s.byte())
	case 2:
		return math.MaxInt64
	}
	v := uint64(0)
	for range 8 {
		v = v<<8 | uint64(s.byte())
	}
	return v
}

func (s *source) tokens() policies.Tokens { return policies.Tokens(s.word()) }

// float returns any float64 except NaN, which is not equal to itself.
func (s *source) float() float64 {
	f := math.Float64frombits(s.word())
	if f != f {
		return 1.5
	}
	return f
}

func (s *source) text() string {
	b := make([]byte, s.below(20))
	for i := range b {
		b[i] = s.byte()
	}
	return string(b)
}

func (s *source) call() Call {
	c := Call{ID: s.word(), Now: policies.Micros(s.word()), Seed: s.word(), State: []byte(s.text())}
	c.Room = len(c.State) + s.below(10)
	return c
}

func (s *source) bids() []policies.Bid {
	list := make([]policies.Bid, s.below(20))
	for i := range list {
		list[i] = policies.Bid{From: policies.ReplicaID(s.text()), Load: s.tokens(), Start: policies.Micros(s.word())}
	}
	return list
}

func (s *source) ask() QuoteArgs {
	return QuoteArgs{
		policies.Occupancy{Capacity: s.tokens(), Held: s.tokens(), Promised: s.tokens(), Incoming: s.tokens(), Throughput: s.tokens(), Draining: s.below(2) == 1},
		policies.Migration{Request: s.text(), Length: s.tokens(), Cause: policies.MigrationCause(s.byte())},
	}
}

func (s *source) sequences() []policies.Sequence {
	list := make([]policies.Sequence, s.below(10))
	for i := range list {
		list[i] = policies.Sequence{Input: s.tokens(), Length: s.tokens()}
	}
	return list
}

func (s *source) cost() policies.Cost {
	return policies.Cost{D0: s.float(), D1: s.float(), D2: s.float(), D3: s.float(), D4: s.float(), Kappa: s.float()}
}

func (s *source) qoe() policies.QoE {
	return policies.QoE{D0: s.float(), D1: s.float(), D2: s.float(), D3: s.float(), D4: s.float()}
}

func (s *source) border() policies.BoundaryView {
	return policies.BoundaryView{Boundary: s.tokens(), Low: s.tokens(), High: s.tokens(), Peers: int(s.word()), Successors: int(s.word()),
		QoE: s.qoe(), Local: s.sequences(), Next: s.sequences()}
}

func (s *source) workload() policies.Workload {
	n := s.below(8)
	f := policies.NewFlow(make([]policies.Tokens, n))
	w := policies.Workload{Flow: f, QoE: s.qoe(), Cost: s.cost(),
		Capacity: policies.Capacity{KV: s.tokens(), Batch: int(s.word()), TransferRate: s.float()}, Replicas: int(s.word()),
		Transfer: policies.Transfer{Base: s.float(), PerToken: s.float()},
		Limits:   policies.Limits{Stages: s.below(20), Iteration: s.float(), Pooling: s.float(), Utilisation: s.float()}}
	w.Flow.Seen = s.word()
	if s.below(2) == 1 {
		w.Snapshot = make([]policies.Batch, n)
	}
	for i := range n {
		f.Edges[i] = s.tokens()
		for _, col := range [][]float64{f.Arrivals, f.Tokens, f.Reads, f.Prefill, f.Prefill2, f.Weight, f.Crossings} {
			col[i] = s.float()
		}
		if w.Snapshot != nil {
			w.Snapshot[i] = policies.Batch{N: s.float(), SumI: s.float(), SumI2: s.float(), SumL: s.float()}
		}
	}
	return w
}

func (s *source) site() policies.Candidate {
	return policies.Candidate{ID: policies.ReplicaID(s.text()), Low: s.tokens(), High: s.tokens(), Waiting: s.tokens(), Load: s.tokens(),
		Prefix: s.tokens(), Draining: s.below(2) == 1, Running: int(s.word()), Price: int64(s.word())}
}

func (s *source) arrival() policies.Arrival {
	a := policies.Arrival{
		Request: policies.Request{ID: s.text(), Model: s.text(), Input: s.tokens(), Cached: s.tokens(), Output: s.tokens(), MaxOutput: s.tokens(),
			Estimated: s.below(2) == 1, Features: policies.Features(s.word())},
		Hops: int(s.word()), Own: s.site(),
	}
	a.Peers = make([]policies.Candidate, s.below(6))
	for i := range a.Peers {
		a.Peers[i] = s.site()
	}
	return a
}

func (s *source) plan(model string) policies.Plan {
	p := policies.Plan{Model: model, Epoch: policies.Epoch(s.word()), Stages: make([]policies.Stage, s.below(5))}
	for i := range p.Stages {
		ids := make([]policies.ReplicaID, s.below(4))
		for k := range ids {
			ids[k] = policies.ReplicaID(s.text())
		}
		p.Stages[i] = policies.Stage{Low: s.tokens(), High: s.tokens(), Replicas: ids}
	}
	return p
}

func (s *source) change() Change {
	model := s.text()
	ch := Change{Now: s.plan(model), Next: s.plan(model)}
	if len(ch.Now.Stages) == 0 {
		ch.Now.Model = ""
	}
	return ch
}

// A kindCase has the encoder and decoder of a kind, for tests of all kinds: put encodes
// arguments from a source and returns them as text; get decodes any frame and returns its
// arguments as text.
type kindCase struct {
	kind Kind
	put  func(s *source, arena []byte, c Call) (words string, n int, err error)
	get  func(frame []byte) (words string, s Status)
}

// show formats arguments, with empty slices as nil, except the snapshot of a workload,
// whose absence has a meaning.
func show(v any) string {
	if w, ok := v.(policies.Workload); ok {
		return fmt.Sprintf("%+v, snapshot %v", w, w.Snapshot != nil)
	}
	return fmt.Sprintf("%+v", v)
}

func caseOf[Q, A any](k Codec[Q, A], arguments func(*source) Q) kindCase {
	return kindCase{k.Kind,
		func(s *source, arena []byte, c Call) (string, int, error) {
			q := arguments(s)
			n, err := k.EncodeCall(arena, c, q)
			return show(q), n, err
		},
		func(frame []byte) (string, Status) {
			q, s := k.DecodeCall(frame)
			return show(q), s
		}}
}

var kindCases = []kindCase{
	caseOf(ConfigureCodec, func(s *source) []byte { return []byte(s.text()) }),
	caseOf(PartitionCodec, (*source).workload),
	caseOf(RefineCodec, (*source).border),
	caseOf(QuoteCodec, (*source).ask),
	caseOf(SelectCodec, (*source).bids),
	caseOf(OutlierCodec, func(s *source) Loads { return Loads{s.tokens(), s.tokens()} }),
	caseOf(PlaceCodec, (*source).arrival),
	caseOf(GuardCodec, (*source).change),
}
