package host

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Record is one call written down: what went in, what came out. With the module
// it says all there is to say about the call, so that it can be replayed.
type Record struct {
	Module [sha256.Size]byte
	Kind   abi.Kind
	Frame  []byte // as it was written for the call
	Result uint64 // status<<32 | value; 0 without an answer
	Output []byte // the frame's room for output after the call
	Fuel   int64
	Cause  Cause // why there is no answer; 0 when there is. Rules are not checked.
}

// begin and end use the record's slices again.
func (r *Record) begin(m *Module, k abi.Kind, frame []byte) {
	r.Module, r.Kind = m.sum, k
	r.Frame = append(r.Frame[:0], frame...)
	r.Result, r.Output, r.Fuel, r.Cause = 0, r.Output[:0], 0, 0
}

func (r *Record) end(i *Instance, result uint64, err error) {
	r.Fuel, r.Cause = i.Fuel(), CauseOf(err)
	if err != nil {
		return
	}
	r.Result = result
	// Where the output is, the frame says as it was before the guest had it.
	at, n := binary.LittleEndian.Uint32(r.Frame[56:]), binary.LittleEndian.Uint32(r.Frame[60:])
	if end := uint64(at) + uint64(n); end <= uint64(len(r.Frame)) {
		r.Output = append(r.Output, i.arena()[at:end]...)
	}
}

// Equal reports whether two records are of the same frame and have the same
// answer, fuel included.
func (r *Record) Equal(o *Record) bool {
	return r.Kind == o.Kind && string(r.Frame) == string(o.Frame) && r.Result == o.Result &&
		string(r.Output) == string(o.Output) && r.Fuel == o.Fuel && r.Cause == o.Cause
}

// Record has the next call written down into r, whose slices it uses again. A
// call that was not made leaves no frame in it.
func (i *Instance) Record(r *Record) { i.record = r }

// Replay makes the call of a frame and writes it down into r, whose slices it
// uses again; frame may be r.Frame of another record. The rules of the kind are
// checked against the words in the frame. The error is a *Fault, which r.Cause
// has, too. It is Starved only if the thread, too, did not run: where that is known,
// on Linux, it tells code whose ticks are slow from a busy machine.
func (i *Instance) Replay(frame []byte, r *Record) error {
	k := abi.Kinds
	if len(frame) >= abi.HeaderSize && binary.LittleEndian.Uint32(frame) == abi.Magic {
		k = abi.Kind(binary.LittleEndian.Uint16(frame[6:]))
	}
	if k >= abi.Kinds {
		return i.fault(starting, TooLarge, errors.New("not a frame"))
	}
	var err error
	if len(frame) > len(i.arena()) {
		err = i.enlarge(k, len(frame))
	}
	if err == nil {
		copy(i.arena(), frame)
	}
	i.record = r
	var result uint64
	ran := ranFor(func() { result, err = i.run(k, len(frame), err) })
	if f, ok := err.(*Fault); ok && f.Starved && ran >= i.limits[k].Wall/2 {
		f.Starved = false
	}
	if err == nil {
		err = i.judge(k, i.verdict(k, frame, result))
	}
	r.Cause = CauseOf(err)
	return err
}

// verdict checks an answer by the words of its frame.
func (i *Instance) verdict(k abi.Kind, frame []byte, result uint64) (err error) {
	s := abi.OK
	switch k {
	case abi.Configure:
		err = abi.TakeConfigure(result)
	case abi.Select:
		var bids []policies.Bid
		if bids, s = abi.GetSelect(frame, nil); s == abi.OK {
			_, err = abi.TakeSelect(result, len(bids))
		}
	case abi.Quote:
		_, _, err = abi.TakeQuote(i.arena(), result)
	case abi.Outlier:
		var own policies.Tokens
		if own, _, s = abi.GetOutlier(frame); s == abi.OK {
			_, err = abi.TakeOutlier(i.arena(), result, own)
		}
	case abi.Place:
		var a policies.Arrival
		if a, s = abi.GetPlace(frame, nil); s == abi.OK {
			_, err = abi.TakePlace(result, a)
		}
	case abi.Refine:
		var b policies.Border
		if b, _, s = abi.GetRefine(frame, nil); s == abi.OK {
			_, err = abi.TakeRefine(i.arena(), result, b)
		}
	case abi.Partition:
		var w policies.Workload
		if s = abi.GetPartition(frame, &w); s == abi.OK {
			if _, err = abi.TakePartition(i.arena(), result, w); err == policies.ErrInfeasible {
				err = nil
			}
		}
	case abi.Guard:
		var ch abi.Change
		if ch, s = abi.GetGuard(frame); s == abi.OK {
			_, _, err = abi.TakeGuard(i.arena(), result, ch)
		}
	}
	if s != abi.OK {
		return s
	}
	return err
}
