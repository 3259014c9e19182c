package abi

import "github.com/cascadeinfer/cascade/policies"

// outlier: decides how much of its load a replica should offer to its stage.
//
//	args    0 i64  own: the replica's load in tokens
//	        8 i64  mean over the stage
//	output  0 i64  excess, 0 for a replica that is no outlier
//	value     8, the output's length; None means an excess of 0
//	rule      0 ≤ excess ≤ max(own, 0)
//
// There are no records, and aux is empty.
const (
	outlierArgs = 16
	outlierOut  = 8
)

// EncodeOutlierCall writes a frame into an arena and returns its length; with ErrShort,
// the length that the frame needs. It does not allocate.
func EncodeOutlierCall(arena []byte, c Call, own, mean policies.Tokens) (int, error) {
	p, n, err := frameShape{kind: Outlier, args: outlierArgs, output: outlierOut}.writeTo(arena, c)
	if err == nil {
		put64(p.args, uint64(own))
		put64(p.args[8:], uint64(mean))
	}
	return n, err
}

// DecodeOutlierCall returns the arguments in a frame.
func DecodeOutlierCall(frame []byte) (own, mean policies.Tokens, s Status) {
	var p frameAreas
	s = p.parse(frame, Outlier, outlierArgs, 0)
	if s != OK {
		return 0, 0, s
	}
	return policies.Tokens(u64(p.args)), policies.Tokens(u64(p.args[8:])), OK
}

// EncodeOutlierResult writes the excess and returns the result.
func EncodeOutlierResult(frame []byte, excess policies.Tokens) uint64 {
	return encodeTokens(frame, excess)
}

// DecodeOutlierResult returns the excess in a result for a replica with load own.
func DecodeOutlierResult(frame []byte, result uint64, own policies.Tokens) (policies.Tokens, error) {
	if s, _ := Unpack(result); s == None {
		return 0, nil
	}
	excess, err := decodeTokens(frame, result)
	switch {
	case err != nil:
		return 0, err
	case excess < 0 || excess > max(own, 0):
		return 0, ErrRule
	}
	return excess, nil
}

// encodeTokens writes an output that is one number of tokens.
func encodeTokens(frame []byte, t policies.Tokens) uint64 {
	out, s := outputRoom(frame, 8)
	if s != OK {
		return Result(s, 8)
	}
	put64(out, uint64(t))
	return Result(OK, 8)
}

// decodeTokens reads an output that encodeTokens wrote.
func decodeTokens(frame []byte, result uint64) (policies.Tokens, error) {
	s, n := Unpack(result)
	if s != OK {
		return 0, s
	}
	out, err := output(frame, n)
	if err != nil || n < 8 {
		return 0, ErrOutput
	}
	return policies.Tokens(u64(out)), nil
}

// OutlierCodec is the codec of the kind.
var OutlierCodec = Codec[Loads, policies.Tokens]{
	Kind: Outlier,
	EncodeCall: func(arena []byte, c Call, l Loads) (int, error) {
		return EncodeOutlierCall(arena, c, l.Own, l.Mean)
	},
	DecodeCall: func(frame []byte) (l Loads, s Status) {
		l.Own, l.Mean, s = DecodeOutlierCall(frame)
		return l, s
	},
	EncodeResult: func(frame []byte, _ Loads, excess policies.Tokens) (uint64, error) {
		return EncodeOutlierResult(frame, excess), nil
	},
	DecodeResult: func(frame []byte, result uint64, l Loads) (policies.Tokens, error) {
		return DecodeOutlierResult(frame, result, l.Own)
	},
}
