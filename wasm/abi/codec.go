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

// The codecs of the kinds.
var (
	ConfigureCodec = Codec[[]byte, struct{}]{
		Kind: Configure, EncodeCall: EncodeConfigureCall, DecodeCall: DecodeConfigureCall,
		EncodeResult: func([]byte, []byte, struct{}) (uint64, error) { return Result(OK, 0), nil },
		DecodeResult: func(_ []byte, result uint64, _ []byte) (struct{}, error) {
			return struct{}{}, DecodeConfigureResult(result)
		},
	}
	PartitionCodec = Codec[policies.Workload, PartitionAnswer]{
		Kind: Partition, EncodeCall: EncodePartitionCall,
		DecodeCall: func(frame []byte) (w policies.Workload, s Status) {
			s = DecodePartitionCall(frame, &w)
			return w, s
		},
		EncodeResult: func(frame []byte, _ policies.Workload, a PartitionAnswer) (uint64, error) {
			if a.Err != nil && a.Err != policies.ErrInfeasible {
				return 0, a.Err
			}
			return EncodePartitionResult(frame, a.Partition, a.Err == nil), nil
		},
		DecodeResult: func(frame []byte, result uint64, w policies.Workload) (PartitionAnswer, error) {
			p, err := DecodePartitionResult(frame, result, w)
			if err == policies.ErrInfeasible { // an answer, not a fault
				return PartitionAnswer{p, err}, nil
			}
			return PartitionAnswer{p, nil}, err
		},
	}
	RefineCodec = Codec[policies.BoundaryView, policies.Tokens]{
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
	QuoteCodec = Codec[QuoteArgs, QuoteAnswer]{
		Kind: Quote, EncodeCall: EncodeQuoteCall, DecodeCall: DecodeQuoteCall,
		EncodeResult: func(frame []byte, _ QuoteArgs, a QuoteAnswer) (uint64, error) {
			return EncodeQuoteResult(frame, a.Bid, a.OK), nil
		},
		DecodeResult: func(frame []byte, result uint64, _ QuoteArgs) (QuoteAnswer, error) {
			bid, bids, err := DecodeQuoteResult(frame, result)
			return QuoteAnswer{bid, bids}, err
		},
	}
	SelectCodec = Codec[[]policies.Bid, int]{
		Kind: Select, EncodeCall: EncodeSelectCall,
		DecodeCall:   func(frame []byte) ([]policies.Bid, Status) { return DecodeSelectCall(frame, nil) },
		EncodeResult: func(_ []byte, _ []policies.Bid, winner int) (uint64, error) { return EncodeSelectResult(winner), nil },
		DecodeResult: func(_ []byte, result uint64, bids []policies.Bid) (int, error) {
			return DecodeSelectResult(result, len(bids))
		},
	}
	OutlierCodec = Codec[Loads, policies.Tokens]{
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
	PlaceCodec = Codec[policies.Arrival, policies.ReplicaID]{
		Kind: Place, EncodeCall: EncodePlaceCall,
		DecodeCall: func(frame []byte) (policies.Arrival, Status) { return DecodePlaceCall(frame, nil) },
		EncodeResult: func(_ []byte, a policies.Arrival, peer policies.ReplicaID) (uint64, error) {
			return EncodePlaceResult(a, peer), nil
		},
		DecodeResult: func(_ []byte, result uint64, a policies.Arrival) (policies.ReplicaID, error) {
			return DecodePlaceResult(result, a)
		},
	}
	GuardCodec = Codec[Change, GuardAnswer]{
		Kind: Guard, EncodeCall: EncodeGuardCall, DecodeCall: DecodeGuardCall,
		EncodeResult: func(frame []byte, _ Change, a GuardAnswer) (uint64, error) {
			return EncodeGuardResult(frame, a.Denial, a.Denied), nil
		},
		DecodeResult: func(frame []byte, result uint64, ch Change) (GuardAnswer, error) {
			d, denied, err := DecodeGuardResult(frame, result, ch)
			return GuardAnswer{d, denied}, err
		},
	}
)
