package abi

import "github.com/cascadeinfer/cascade/policies"

// place: where a request starts that has not produced a token.
//
//	args    0 text request
//	        8 text model
//	       16 i64  input tokens
//	       24 i64  of them cached
//	       32 i64  output tokens so far
//	       40 i64  most output tokens, 0 unknown
//	       48 u32  features, see policies.Features
//	       52 u32  bit 0: the input is an estimate
//	       56 i64  hops: how often it was forwarded already
//	record  0 i64  low: the stage's lengths start here
//	        8 i64  high: and end before this
//	       16 i64  waiting: prompt tokens not yet prefilled
//	       24 i64  load: tokens of KV in use and promised
//	       32 i64  prefix: tokens of this prompt that it has cached
//	       40 text replica
//	       48 u64  bit 0: draining
//	value     the number of the peer, counted from 0; with None, the own replica
//	rules     the number is below rec_count − 1; forwarded requests stay
//
// The first record is the own replica, the others are its peers. There is no
// output.
const (
	placeArgs = 64
	siteSize  = 56
)

// PutPlace writes a frame into an arena and returns its length; with ErrShort,
// the length it needs. It does not allocate.
func PutPlace(arena []byte, c Call, a policies.Arrival) (int, error) {
	q := &a.Request
	s := shape{kind: Place, args: placeArgs, size: siteSize, count: 1 + len(a.Peers), aux: len(q.ID) + len(q.Model) + len(a.Own.ID)}
	for i := range a.Peers {
		s.aux += len(a.Peers[i].ID)
	}
	p, n, err := s.lay(arena, c)
	if err != nil {
		return n, err
	}
	t := texts{aux: p.aux}
	b := p.args[:placeArgs]
	t.put(b, q.ID)
	t.put(b[8:], q.Model)
	put64(b[16:], uint64(q.Input))
	put64(b[24:], uint64(q.Cached))
	put64(b[32:], uint64(q.Output))
	put64(b[40:], uint64(q.MaxOutput))
	put32(b[48:], uint32(q.Features))
	put32(b[52:], bit(q.Estimated, 1))
	put64(b[56:], uint64(a.Hops))
	putSite(p.record(0)[:siteSize], &a.Own, &t)
	for i := range a.Peers {
		putSite(p.record(1 + i)[:siteSize], &a.Peers[i], &t)
	}
	return n, nil
}

func putSite(r []byte, s *policies.Site, t *texts) {
	put64(r, uint64(s.Low))
	put64(r[8:], uint64(s.High))
	put64(r[16:], uint64(s.Waiting))
	put64(r[24:], uint64(s.Load))
	put64(r[32:], uint64(s.Prefix))
	t.put(r[40:], string(s.ID))
	put64(r[48:], uint64(bit(s.Draining, 1)))
}

// GetPlace reads a frame. It puts the peers into dst[:0], which the arrival
// shares; texts share the frame's memory. It does not allocate when dst has
// room.
func GetPlace(frame []byte, dst []policies.Site) (policies.Arrival, Status) {
	var p parts
	s := p.open(frame, Place, placeArgs, siteSize)
	switch {
	case s != OK:
		return policies.Arrival{}, s
	case p.count < 1:
		return policies.Arrival{}, BadFrame
	}
	b := p.args[:placeArgs]
	id, ok1 := text(u64(b), p.aux)
	model, ok2 := text(u64(b[8:]), p.aux)
	own, ok3 := site(p.record(0)[:siteSize], p.aux)
	if !ok1 || !ok2 || !ok3 {
		return policies.Arrival{}, BadFrame
	}
	dst = dst[:0]
	for i := 1; i < p.count; i++ {
		peer, ok := site(p.record(i)[:siteSize], p.aux)
		if !ok {
			return policies.Arrival{}, BadFrame
		}
		dst = append(dst, peer)
	}
	return policies.Arrival{
		Request: policies.Request{
			ID: id, Model: model, Input: policies.Tokens(u64(b[16:])), Cached: policies.Tokens(u64(b[24:])),
			Output: policies.Tokens(u64(b[32:])), MaxOutput: policies.Tokens(u64(b[40:])),
			Features: policies.Features(u32(b[48:])), Estimated: u32(b[52:])&1 != 0,
		},
		Hops: int(u64(b[56:])), Own: own, Peers: dst,
	}, OK
}

func site(r, aux []byte) (policies.Site, bool) {
	id, ok := text(u64(r[40:]), aux)
	return policies.Site{
		ID: policies.ReplicaID(id), Low: policies.Tokens(u64(r)), High: policies.Tokens(u64(r[8:])), Waiting: policies.Tokens(u64(r[16:])),
		Load: policies.Tokens(u64(r[24:])), Prefix: policies.Tokens(u64(r[32:])), Draining: u64(r[48:])&1 != 0,
	}, ok
}

// AnswerPlace is the result for a choice: a peer of the arrival, or "" or the
// own replica to stay. Another name is Failed.
func AnswerPlace(a policies.Arrival, id policies.ReplicaID) uint64 {
	if id == "" || id == a.Own.ID {
		return Result(None, 0)
	}
	for i := range a.Peers {
		if a.Peers[i].ID == id {
			return Result(OK, uint32(i))
		}
	}
	return Result(Failed, 0)
}

// TakePlace returns the peer that a result names, "" for the own replica.
func TakePlace(result uint64, a policies.Arrival) (policies.ReplicaID, error) {
	switch s, i := Unpack(result); {
	case s == None:
		return "", nil
	case s != OK:
		return "", s
	case uint64(i) >= uint64(len(a.Peers)) || a.Hops > 0:
		return "", ErrRule
	default:
		return a.Peers[i].ID, nil
	}
}
