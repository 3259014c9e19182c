package abi

import "github.com/cascadeinfer/cascade/policies"

// Codec has the functions of one kind, whose calls have arguments Q and an answer A, for
// programs that treat all kinds alike. A guest that names no codec links none.
type Codec[Q, A any] struct {
	Kind       Kind
	EncodeCall func(arena []byte, c Call, q Q) (int, error)
	DecodeCall func(frame []byte) (Q, Status)
	// EncodeResult writes the answer into the frame of its call and returns the result.
	// The error is one that the policy blames on its caller.
	EncodeResult func(frame []byte, q Q, a A) (uint64, error)
	DecodeResult func(frame []byte, result uint64, q Q) (A, error)
}

// Frame returns a new frame with a call.
func (k *Codec[Q, A]) Frame(c Call, q Q) ([]byte, error) {
	n, err := k.EncodeCall(nil, c, q)
	if err != ErrShort {
		return nil, err
	}
	frame := make([]byte, n)
	_, err = k.EncodeCall(frame, c, q)
	return frame, err
}

// The arguments and answers that consist of several values.
type (
	// QuoteAnswer has a bid if OK is true.
	QuoteAnswer struct {
		Bid policies.Bid
		OK  bool
	}
	// Loads are the arguments of an outlier call: the replica's and the mean of its stage.
	Loads struct{ Own, Mean policies.Tokens }
	// PartitionAnswer has a partition, or the error of the policy.
	PartitionAnswer struct {
		Partition policies.Partition
		Err       error
	}
	// GuardAnswer has a denial if Denied is true.
	GuardAnswer struct {
		Denial Denial
		Denied bool
	}
)

// CheckAnswer returns why the result of a call, and the output in the arena, are no answer to
// the call's frame; nil if they are.
func (k *Codec[Q, A]) CheckAnswer(frame, arena []byte, result uint64) error {
	q, s := k.DecodeCall(frame)
	if s != OK {
		return s
	}
	_, err := k.DecodeResult(arena, result, q)
	return err
}
