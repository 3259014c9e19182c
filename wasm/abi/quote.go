package abi

import "github.com/cascadeinfer/cascade/policies"

// bid-quote: a buyer prices the migration of a request to it.
//
//	args    0 i64  capacity: KV tokens, 0 if unknown
//	        8 i64  held
//	       16 i64  promised
//	       24 i64  incoming
//	       32 i64  throughput: tokens per second, 0 if unknown
//	       40 i64  length of the request
//	       48 text request
//	       56 u32  cause: 1 growth, 2 outlier, 3 drain, 4 spill, 5 prefill, 6 cheaper
//	       60 u32  bit 0: draining
//	output  0 i64  load
//	        8 i64  start: microseconds from now
//	value     16, the output's length; with None, no bid
//	rule      load and start are not negative
//
// There are no records.
const (
	quoteArgs = 64
	quoteOut  = 16
)

// QuoteArgs holds the arguments of a quote: the buyer's occupancy and the migration.
type QuoteArgs struct {
	Occupancy policies.Occupancy
	Migration policies.Migration
}

// EncodeQuoteCall writes a frame into an arena and returns its length; with ErrShort,
// the length that the frame needs. It does not allocate.
func EncodeQuoteCall(arena []byte, c Call, args QuoteArgs) (int, error) {
	p, n, err := frameShape{kind: Quote, args: quoteArgs, aux: len(args.Migration.Request), output: quoteOut}.writeTo(arena, c)
	if err != nil {
		return n, err
	}
	a, pos := p.args[:quoteArgs], &args.Occupancy
	put64(a, uint64(pos.Capacity))
	put64(a[8:], uint64(pos.Held))
	put64(a[16:], uint64(pos.Promised))
	put64(a[24:], uint64(pos.Incoming))
	put64(a[32:], uint64(pos.Throughput))
	put64(a[40:], uint64(args.Migration.Length))
	(&textWriter{aux: p.aux}).put(a[48:], args.Migration.Request)
	put32(a[56:], uint32(args.Migration.Cause))
	put32(a[60:], flagIf(pos.Draining, 1))
	return n, nil
}

// DecodeQuoteCall returns the arguments in a frame. The request's name shares the frame's
// memory.
func DecodeQuoteCall(frame []byte) (QuoteArgs, Status) {
	var p frameAreas
	s := p.parse(frame, Quote, quoteArgs, 0)
	if s != OK {
		return QuoteArgs{}, s
	}
	a := p.args[:quoteArgs]
	request, ok := text(u64(a[48:]), p.aux)
	cause := u32(a[56:])
	if !ok || cause > 255 {
		return QuoteArgs{}, BadFrame
	}
	return QuoteArgs{
		policies.Occupancy{
			Capacity: policies.Tokens(u64(a)), Held: policies.Tokens(u64(a[8:])), Promised: policies.Tokens(u64(a[16:])),
			Incoming: policies.Tokens(u64(a[24:])), Throughput: policies.Tokens(u64(a[32:])), Draining: u32(a[60:])&1 != 0,
		},
		policies.Migration{Request: request, Length: policies.Tokens(u64(a[40:])), Cause: policies.MigrationCause(cause)},
	}, OK
}

// EncodeQuoteResult writes the bid, if bids is true, and returns the result.
func EncodeQuoteResult(frame []byte, b policies.Bid, bids bool) uint64 {
	if !bids {
		return Result(None, 0)
	}
	out, s := outputRoom(frame, quoteOut)
	if s != OK {
		return Result(s, quoteOut)
	}
	put64(out, uint64(b.Load))
	put64(out[8:], uint64(b.Start))
	return Result(OK, quoteOut)
}

// DecodeQuoteResult returns the bid in a result, and whether there is one. The caller
// sets Bid.From.
func DecodeQuoteResult(frame []byte, result uint64) (policies.Bid, bool, error) {
	s, n := Unpack(result)
	switch {
	case s == None:
		return policies.Bid{}, false, nil
	case s != OK:
		return policies.Bid{}, false, s
	}
	out, err := output(frame, n)
	if err != nil || n < quoteOut {
		return policies.Bid{}, false, ErrOutput
	}
	b := policies.Bid{Load: policies.Tokens(u64(out)), Start: policies.Micros(u64(out[8:]))}
	if b.Load < 0 || b.Start < 0 {
		return policies.Bid{}, false, ErrRule
	}
	return b, true, nil
}

// QuoteCodec is the codec of the kind.
var QuoteCodec = Codec[QuoteArgs, QuoteAnswer]{
	Kind: Quote, EncodeCall: EncodeQuoteCall, DecodeCall: DecodeQuoteCall,
	EncodeResult: func(frame []byte, _ QuoteArgs, a QuoteAnswer) (uint64, error) {
		return EncodeQuoteResult(frame, a.Bid, a.OK), nil
	},
	DecodeResult: func(frame []byte, result uint64, _ QuoteArgs) (QuoteAnswer, error) {
		bid, bids, err := DecodeQuoteResult(frame, result)
		return QuoteAnswer{bid, bids}, err
	},
}
