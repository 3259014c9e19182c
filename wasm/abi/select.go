package abi

import "github.com/cascadeinfer/cascade/policies"

// bid-select: a seller picks the winner among the bids it got.
//
//	record  0 i64  load: tokens that the bidder carries, promises included
//	        8 i64  start: microseconds from now until a transfer could begin
//	       16 text bidder
//	value     the index of the winner; with None, none is taken
//	rule      the index is below rec_count
//
// There are no arguments and no output.
const bidSize = 24

// PutSelect writes a frame into an arena and returns its length; with ErrShort,
// the length it needs. It does not allocate.
func PutSelect(arena []byte, c Call, bids []policies.Bid) (int, error) {
	s := shape{kind: Select, size: bidSize, count: len(bids)}
	for i := range bids {
		s.aux += len(bids[i].From)
	}
	p, n, err := s.lay(arena, c)
	if err != nil {
		return n, err
	}
	t := texts{aux: p.aux}
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

// GetSelect puts the bids of a frame into dst, or a longer slice. Their names share the
// frame's memory: they are good until the function returns to the host. It does
// not allocate when dst has room.
func GetSelect(frame []byte, dst []policies.Bid) ([]policies.Bid, Status) {
	dst = dst[:0]
	var p parts
	s := p.open(frame, Select, 0, bidSize)
	if s != OK {
		return dst, s
	}
	if cap(dst) < p.count {
		dst = make([]policies.Bid, p.count)
	}
	dst = dst[:p.count]
	if !p.bids(dst) {
		return dst[:0], BadFrame
	}
	return dst, OK
}

// AnswerSelect is the result for an index, below 0 for none.
func AnswerSelect(i int) uint64 {
	if i < 0 {
		return Result(None, 0)
	}
	return Result(OK, uint32(i))
}

// TakeSelect returns the index of the winner among that many bids, −1 for none.
func TakeSelect(result uint64, bids int) (int, error) {
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
