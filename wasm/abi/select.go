package abi

import "github.com/cascadeinfer/cascade/policies"

// bid-select: a seller chooses the winner among the bids it received.
//
//	record  0 i64  load: the bidder's load in tokens, reservations included
//	        8 i64  start: microseconds from now until a transfer could begin
//	       16 text bidder
//	value     the index of the winner; with None, none is taken
//	rule      the index is below rec_count
//
// There are no arguments and no output.
const bidSize = 24

// EncodeSelectCall writes a frame into an arena and returns its length; with ErrShort,
// the length that the frame needs. It does not allocate.
func EncodeSelectCall(arena []byte, c Call, bids []policies.Bid) (int, error) {
	s := frameShape{kind: Select, size: bidSize, count: len(bids)}
	for i := range bids {
		s.aux += len(bids[i].From)
	}
	p, n, err := s.writeTo(arena, c)
	if err != nil {
		return n, err
	}
	t := textWriter{aux: p.aux}
	r := p.records
	for i := range bids {
		b := &bids[i]
		_ = r[bidSize-1]
		put64(r, uint64(b.Load))
		put64(r[8:], uint64(b.Start))
		t.put(r[16:], string(b.From))
		r = r[bidSize:]
	}
	return n, nil
}

// DecodeSelectCall returns the bids in a frame, in dst's memory if it is large enough,
// and then does not allocate. The names of the bidders share the frame's memory: they
// are valid until the function returns to the host.
func DecodeSelectCall(frame []byte, dst []policies.Bid) ([]policies.Bid, Status) {
	dst = dst[:0]
	var p frameAreas
	s := p.parse(frame, Select, 0, bidSize)
	if s != OK {
		return dst, s
	}
	if cap(dst) < p.count {
		dst = make([]policies.Bid, p.count)
	}
	dst = dst[:p.count]
	if !p.decodeBids(dst) {
		return dst[:0], BadFrame
	}
	return dst, OK
}

// EncodeSelectResult returns the result for an index, which is negative for none.
func EncodeSelectResult(i int) uint64 {
	if i < 0 {
		return Result(None, 0)
	}
	return Result(OK, uint32(i))
}

// DecodeSelectResult returns the index of the winner among a number of bids, −1 for
// none.
func DecodeSelectResult(result uint64, bids int) (int, error) {
	switch s, i := Unpack(result); {
	case s == None:
		return -1, nil
	case s != OK:
		return -1, s
	case uint64(i) >= uint64(bids):
		return -1, ErrRule
	default:
		return int(i), nil
	}
}

// SelectCodec is the codec of the kind.
var SelectCodec = Codec[[]policies.Bid, int]{
	Kind: Select, EncodeCall: EncodeSelectCall,
	DecodeCall:   func(frame []byte) ([]policies.Bid, Status) { return DecodeSelectCall(frame, nil) },
	EncodeResult: func(_ []byte, _ []policies.Bid, winner int) (uint64, error) { return EncodeSelectResult(winner), nil },
	DecodeResult: func(_ []byte, result uint64, bids []policies.Bid) (int, error) {
		return DecodeSelectResult(result, len(bids))
	},
}
