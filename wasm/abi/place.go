package abi

import "github.com/cascadeinfer/cascade/policies"

// place: decides which replica starts a request that has not produced a token.
//
//	args    0 text request
//	        8 text model
//	       16 i64  input tokens
//	       24 i64  cached input tokens
//	       32 i64  output tokens so far
//	       40 i64  maximum of output tokens, 0 if unknown
//	       48 u32  features, see policies.Features
//	       52 u32  bit 0: the input is an estimate
//	       56 i64  hops: how often it was forwarded
//	record  0 i64  low: the first length of the replica's stage
//	        8 i64  high: the first length above it
//	       16 i64  waiting: prompt tokens not yet prefilled
//	       24 i64  load: KV tokens in use and reserved
//	       32 i64  prefix: cached tokens of this prompt
//	       40 text replica
//	       48 u64  bit 0: draining
//	       56 i64  running: requests that generate tokens there
//	       64 i64  price: what the request costs there, in nanoseconds per token, 0 if unknown
//	value     the index of the peer, from 0; with None, the own replica
//	rules     the index is below rec_count − 1; forwarded requests stay
//
// The first record is the own replica, the others are its peers. Peers may be of any
// stage, also of the next shorter one if the request can move: compare low and high with
// the length. There is no output.
const (
	placeArgs = 64
	siteSize  = 72
	siteSize5 = 64 // of 1.5
	siteSize0 = 56 // of 1.0
)

// EncodePlaceCall writes a frame into an arena and returns its length; with ErrShort,
// the length that the frame needs. It does not allocate.
func EncodePlaceCall(arena []byte, c Call, a policies.Arrival) (int, error) {
	q := &a.Request
	s := frameShape{kind: Place, args: placeArgs, size: siteSize, count: 1 + len(a.Peers), aux: len(q.ID) + len(q.Model) + len(a.Own.ID)}
	for i := range a.Peers {
		s.aux += len(a.Peers[i].ID)
	}
	p, n, err := s.writeTo(arena, c)
	if err != nil {
		return n, err
	}
	t := textWriter{aux: p.aux}
	b := p.args[:placeArgs]
	t.put(b, q.ID)
	t.put(b[8:], q.Model)
	put64(b[16:], uint64(q.Input))
	put64(b[24:], uint64(q.Cached))
	put64(b[32:], uint64(q.Output))
	put64(b[40:], uint64(q.MaxOutput))
	put32(b[48:], uint32(q.Features))
	put32(b[52:], flagIf(q.Estimated, 1))
	put64(b[56:], uint64(a.Hops))
	encodeSite(p.record(0)[:siteSize], &a.Own, &t)
	for i := range a.Peers {
		encodeSite(p.record(1 + i)[:siteSize], &a.Peers[i], &t)
	}
	return n, nil
}

func encodeSite(r []byte, s *policies.Candidate, t *textWriter) {
	put64(r, uint64(s.Low))
	put64(r[8:], uint64(s.High))
	put64(r[16:], uint64(s.Waiting))
	put64(r[24:], uint64(s.Load))
	put64(r[32:], uint64(s.Prefix))
	t.put(r[40:], string(s.ID))
	put64(r[48:], uint64(flagIf(s.Draining, 1)))
	put64(r[56:], uint64(s.Running))
	put64(r[64:], uint64(s.Price))
}

// DecodePlaceCall returns the arrival in a frame. Its peers are appended to dst[:0],
// its texts share the frame's memory. It does not allocate if dst is large enough.
func DecodePlaceCall(frame []byte, dst []policies.Candidate) (policies.Arrival, Status) {
	var p frameAreas
	s := p.parse(frame, Place, placeArgs, siteSize0)
	switch {
	case s != OK:
		return policies.Arrival{}, s
	case p.count < 1:
		return policies.Arrival{}, BadFrame
	}
	b := p.args[:placeArgs]
	id, ok1 := text(u64(b), p.aux)
	model, ok2 := text(u64(b[8:]), p.aux)
	own, ok3 := decodeSite(p.record(0), p.aux)
	if !ok1 || !ok2 || !ok3 {
		return policies.Arrival{}, BadFrame
	}
	dst = dst[:0]
	for i := 1; i < p.count; i++ {
		peer, ok := decodeSite(p.record(i), p.aux)
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

func decodeSite(r, aux []byte) (policies.Candidate, bool) {
	id, ok := text(u64(r[40:]), aux)
	running, price := uint64(0), uint64(0)
	if len(r) >= siteSize5 {
		running = u64(r[56:])
	}
	if len(r) >= siteSize {
		price = u64(r[64:])
	}
	return policies.Candidate{
		ID: policies.ReplicaID(id), Low: policies.Tokens(u64(r)), High: policies.Tokens(u64(r[8:])), Waiting: policies.Tokens(u64(r[16:])),
		Load: policies.Tokens(u64(r[24:])), Prefix: policies.Tokens(u64(r[32:])), Draining: u64(r[48:])&1 != 0,
		Running: int(running), Price: int64(price),
	}, ok
}

// EncodePlaceResult returns the result for a choice: a peer of the arrival, or "" or
// the own replica. Any other replica is Failed.
func EncodePlaceResult(a policies.Arrival, id policies.ReplicaID) uint64 {
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

// DecodePlaceResult returns the peer in a result, "" for the own replica.
func DecodePlaceResult(result uint64, a policies.Arrival) (policies.ReplicaID, error) {
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

// PlaceCodec is the codec of the kind.
var PlaceCodec = Codec[policies.Arrival, policies.ReplicaID]{
	Kind: Place, EncodeCall: EncodePlaceCall,
	DecodeCall: func(frame []byte) (policies.Arrival, Status) { return DecodePlaceCall(frame, nil) },
	EncodeResult: func(_ []byte, a policies.Arrival, peer policies.ReplicaID) (uint64, error) {
		return EncodePlaceResult(a, peer), nil
	},
	DecodeResult: func(_ []byte, result uint64, a policies.Arrival) (policies.ReplicaID, error) {
		return DecodePlaceResult(result, a)
	},
}
