package abi

import "github.com/cascadeinfer/cascade/policies"

// refine: proposes the boundary between two stages.
//
//	args    0 i64  boundary in force
//	        8 i64  low: start of the own stage
//	       16 i64  high: end of the next; 2^63−1 is open
//	       24 i64  peers: replicas of the own stage
//	       32 i64  successors: replicas of the next stage
//	       40 f64  D0, D1, D2, D3, D4: see policies.QoE
//	       80 f64  0; before 1.4 kappa
//	       88 i64  local: number of records that are the own replica's requests
//	record  0 i64  input tokens
//	        8 i64  length
//	output  0 i64  the proposal
//	value     8, the output's length; None means the boundary in force
//	rule      low < proposal < high
//
// The records of the own replica come first, then those of the next stage.
// aux is empty.
const (
	refineArgs   = 96
	sequenceSize = 16
	qoeSize      = 40
)

// EncodeRefineCall writes a frame into an arena and returns its length; with ErrShort,
// the length that the frame needs. It does not allocate.
func EncodeRefineCall(arena []byte, c Call, b policies.BoundaryView) (int, error) {
	p, n, err := frameShape{kind: Refine, args: refineArgs, size: sequenceSize, count: len(b.Local) + len(b.Next), output: 8}.writeTo(arena, c)
	if err != nil {
		return n, err
	}
	a := p.args[:refineArgs]
	put64(a, uint64(b.Boundary))
	put64(a[8:], uint64(b.Low))
	put64(a[16:], uint64(b.High))
	put64(a[24:], uint64(b.Peers))
	put64(a[32:], uint64(b.Successors))
	encodeQoE(a[40:], b.QoE)
	putFloat(a[80:], 0)
	put64(a[88:], uint64(len(b.Local)))
	putSequences(p.records, b.Local)
	putSequences(p.records[sequenceSize*len(b.Local):], b.Next)
	return n, nil
}

func putSequences(records []byte, list []policies.Sequence) {
	for i, s := range list {
		r := records[i*sequenceSize:][:sequenceSize]
		put64(r, uint64(s.Input))
		put64(r[8:], uint64(s.Length))
	}
}

// DecodeRefineCall reads a frame. It puts the sequences into dst, which it returns
// longer if it must, and which the border's slices share; it does not allocate
// when dst has room.
func DecodeRefineCall(frame []byte, dst []policies.Sequence) (policies.BoundaryView, []policies.Sequence, Status) {
	dst = dst[:0]
	var p frameAreas
	s := p.parse(frame, Refine, refineArgs, sequenceSize)
	if s != OK {
		return policies.BoundaryView{}, dst, s
	}
	a := p.args[:refineArgs]
	local := u64(a[88:])
	if local > uint64(p.count) {
		return policies.BoundaryView{}, dst, BadFrame
	}
	for i := range p.count {
		r := p.record(i)[:sequenceSize]
		dst = append(dst, policies.Sequence{Input: policies.Tokens(u64(r)), Length: policies.Tokens(u64(r[8:]))})
	}
	return policies.BoundaryView{
		Boundary: policies.Tokens(u64(a)), Low: policies.Tokens(u64(a[8:])), High: policies.Tokens(u64(a[16:])),
		Peers: int(u64(a[24:])), Successors: int(u64(a[32:])), QoE: decodeQoE(a[40:]),
		Local: dst[:local:local], Next: dst[local:],
	}, dst, OK
}

// EncodeRefineResult writes the proposal and returns the result.
func EncodeRefineResult(frame []byte, t policies.Tokens) uint64 { return encodeTokens(frame, t) }

// DecodeRefineResult returns the proposal in a result for border b.
func DecodeRefineResult(frame []byte, result uint64, b policies.BoundaryView) (policies.Tokens, error) {
	if s, _ := Unpack(result); s == None {
		return b.Boundary, nil
	}
	t, err := decodeTokens(frame, result)
	switch {
	case err != nil:
		return b.Boundary, err
	case t <= b.Low || t >= b.High:
		return b.Boundary, ErrRule
	}
	return t, nil
}

func encodeQoE(b []byte, m policies.QoE) {
	b = b[:qoeSize]
	putFloat(b, m.D0)
	putFloat(b[8:], m.D1)
	putFloat(b[16:], m.D2)
	putFloat(b[24:], m.D3)
	putFloat(b[32:], m.D4)
}

func decodeQoE(b []byte) policies.QoE {
	b = b[:qoeSize]
	return policies.QoE{D0: f64(b), D1: f64(b[8:]), D2: f64(b[16:]), D3: f64(b[24:]), D4: f64(b[32:])}
}

// RefineCodec is the codec of the kind.
var RefineCodec = Codec[policies.BoundaryView, policies.Tokens]{
	Kind: Refine, EncodeCall: EncodeRefineCall,
	DecodeCall: func(frame []byte) (policies.BoundaryView, Status) {
		b, _, s := DecodeRefineCall(frame, nil)
		return b, s
	},
	EncodeResult: func(frame []byte, _ policies.BoundaryView, boundary policies.Tokens) (uint64, error) {
		return EncodeRefineResult(frame, boundary), nil
	},
	DecodeResult: DecodeRefineResult,
}
