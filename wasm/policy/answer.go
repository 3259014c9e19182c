package policy

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// Answer has the native policy of a frame's kind answer the frame, as a module with
// that policy would, and writes the call down into r, whose slices it uses again.
// It burns no fuel. The error is a *host.Fault, which r.Cause has, too: Unknown
// where there is no such policy.
func (n Native) Answer(frame []byte, r *host.Record) error {
	k := abi.NumKinds
	if len(frame) >= abi.HeaderSize && binary.LittleEndian.Uint32(frame) == abi.Magic {
		k = min(abi.NumKinds, abi.Kind(binary.LittleEndian.Uint16(frame[6:])))
	}
	out := slices.Clone(frame)
	result, decided, err := n.answer(k, out)
	*r = host.Record{Kind: k, Frame: append(r.Frame[:0], frame...), Result: result, Output: r.Output[:0]}
	if status, _ := abi.Unpack(result); err == nil && status > abi.None {
		err = status
	}
	switch {
	case !decided:
		r.Cause, err = host.Unknown, fmt.Errorf("no native policy decides %s", k)
	case err != nil:
		r.Cause = host.Refused
	default:
		at, n := binary.LittleEndian.Uint32(out[56:]), binary.LittleEndian.Uint32(out[60:])
		if end := uint64(at) + uint64(n); end <= uint64(len(out)) {
			r.Output = append(r.Output, out[at:end]...)
		}
		return nil
	}
	return &host.Fault{Kind: k, Cause: r.Cause, Err: err}
}

// answer decides a frame and leaves the output in it.
func (n Native) answer(k abi.Kind, frame []byte) (result uint64, decided bool, err error) {
	var s abi.Status
	switch {
	case k == abi.Partition && n.Partitioner != nil:
		var w policies.Workload
		if s = abi.DecodePartitionCall(frame, &w); s == abi.OK {
			p, err := n.Partitioner.Partition(w)
			if err != nil && err != policies.ErrInfeasible {
				return 0, true, err
			}
			return abi.EncodePartitionResult(frame, p, err == nil), true, nil
		}
	case k == abi.Refine && n.Refiner != nil:
		var b policies.BoundaryView
		if b, _, s = abi.DecodeRefineCall(frame, nil); s == abi.OK {
			return abi.EncodeRefineResult(frame, n.Refiner.Refine(b)), true, nil
		}
	case k == abi.Quote && n.Quoter != nil:
		var ask abi.Ask
		if ask, s = abi.DecodeQuoteCall(frame); s == abi.OK {
			bid, bids := n.Quoter.Quote(ask.Position, ask.Handover)
			return abi.EncodeQuoteResult(frame, bid, bids), true, nil
		}
	case k == abi.Select && n.Selector != nil:
		var bids []policies.Bid
		if bids, s = abi.DecodeSelectCall(frame, nil); s == abi.OK {
			return abi.EncodeSelectResult(n.Selector.Select(bids)), true, nil
		}
	case k == abi.Outlier && n.Detector != nil:
		var own, mean policies.Tokens
		if own, mean, s = abi.DecodeOutlierCall(frame); s == abi.OK {
			return abi.EncodeOutlierResult(frame, n.Detector.Excess(own, mean)), true, nil
		}
	case k == abi.Place && n.Placer != nil:
		var a policies.Arrival
		if a, s = abi.DecodePlaceCall(frame, nil); s == abi.OK {
			return abi.EncodePlaceResult(a, n.Placer.Place(a)), true, nil
		}
	case k == abi.Guard && n.Guard != nil:
		var ch abi.Change
		if ch, s = abi.DecodeGuardCall(frame); s == abi.OK {
			d, denied := n.Guard.Guard(ch)
			return abi.EncodeGuardResult(frame, d, denied), true, nil
		}
	default:
		return 0, false, nil
	}
	return abi.Result(s, 0), true, nil
}
