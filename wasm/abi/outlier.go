package abi

import "github.com/cascadeinfer/cascade/policies"

// outlier: how much of its load a replica should offer to its stage.
//
//	args    0 i64  own: tokens that the replica carries
//	        8 i64  mean over the stage
//	output  0 i64  excess, 0 for a replica that is none
//	value     8, the output's length; None stands for an excess of 0
//	rule      0 ≤ excess ≤ max(own, 0)
//
// There are no records and nothing in aux.
const (
	outlierArgs = 16
	outlierOut  = 8
)

// PutOutlier writes a frame into an arena and returns its length; with ErrShort,
// the length it needs. It does not allocate.
func PutOutlier(arena []byte, c Call, own, mean policies.Tokens) (int, error) {
	p, n, err := shape{kind: Outlier, args: outlierArgs, output: outlierOut}.lay(arena, c)
	if err == nil {
		put64(p.args, uint64(own))
		put64(p.args[8:], uint64(mean))
	}
	return n, err
}

// GetOutlier reads a frame.
func GetOutlier(frame []byte) (own, mean policies.Tokens, s Status) {
	var p parts
	s = p.open(frame, Outlier, outlierArgs, 0)
	if s != OK {
		return 0, 0, s
	}
	return policies.Tokens(u64(p.args)), policies.Tokens(u64(p.args[8:])), OK
}

// AnswerOutlier writes the excess and returns the result.
func AnswerOutlier(frame []byte, excess policies.Tokens) uint64 { return answerTokens(frame, excess) }

// TakeOutlier returns the excess of a result for a replica that carries own.
func TakeOutlier(frame []byte, result uint64, own policies.Tokens) (policies.Tokens, error) {
	if s, _ := Unpack(result); s == None {
		return 0, nil
	}
	excess, err := takeTokens(frame, result)
	switch {
	case err != nil:
		return 0, err
	case excess < 0 || excess > max(own, 0):
		return 0, ErrRule
	}
	return excess, nil
}

// answerTokens writes an output of one count of tokens.
func answerTokens(frame []byte, t policies.Tokens) uint64 {
	out, s := room(frame, 8)
	if s != OK {
		return Result(s, 8)
	}
	put64(out, uint64(t))
	return Result(OK, 8)
}

// takeTokens reads such an output.
func takeTokens(frame []byte, result uint64) (policies.Tokens, error) {
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
