package host

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// Record is a recorded call: its input and output. Together with the module it suffices
// to replay the call.
type Record struct {
	Module [sha256.Size]byte
	Kind   abi.Kind
	Frame  []byte // before the call
	Result uint64 // status<<32 | value; 0 without an answer
	Output []byte // the frame's output area after the call
	Fuel   int64
	Cause  Cause // why there is no answer, 0 if there is one; rules are not checked
}

// begin records the input of a call. begin and end reuse the record's slices.
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
	// Read the output's place from the frame before the call: the guest may change it.
	at, n := binary.LittleEndian.Uint32(r.Frame[56:]), binary.LittleEndian.Uint32(r.Frame[60:])
	if end := uint64(at) + uint64(n); end <= uint64(len(r.Frame)) {
		r.Output = append(r.Output, i.arena()[at:end]...)
	}
}

// Equal reports whether two records have the same frame and the same answer, fuel
// included.
func (r *Record) Equal(o *Record) bool {
	return r.Kind == o.Kind && string(r.Frame) == string(o.Frame) && r.Result == o.Result &&
		string(r.Output) == string(o.Output) && r.Fuel == o.Fuel && r.Cause == o.Cause
}

// Decode returns the arguments and the answer of a recorded call of a kind.
func Decode[Q, A any](r *Record, k *abi.Codec[Q, A]) (q Q, a A, err error) {
	q, s := k.DecodeCall(r.Frame)
	if s != abi.OK {
		return q, a, s
	}
	frame := slices.Clone(r.Frame)
	copy(abi.OutputArea(frame), r.Output)
	a, err = k.DecodeResult(frame, r.Result, q)
	return q, a, err
}

// Record makes the next call record itself into r, whose slices it reuses. A call that
// is not made leaves no frame in r.
func (i *Instance) Record(r *Record) { i.record = r }

// Replay makes the call of a recorded frame and records it into r, whose slices it
// reuses; frame may be the Frame of another record. It checks the rules of the kind
// against the arguments in the frame. The error is a *Fault, whose cause is also
// r.Cause. Replay reports Starved only if the thread did not run either; it measures
// that on Linux, to distinguish slow ticks from a busy machine.
func (i *Instance) Replay(frame []byte, r *Record) error {
	k := abi.KindOf(frame)
	if k == abi.NumKinds {
		return i.fault(startKind, TooLarge, errors.New("not a frame"))
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
	ran := threadTimeOf(func() { result, err = i.run(k, len(frame), err) })
	if f, ok := err.(*Fault); ok && f.Starved && ran >= i.limits[k].Wall/2 {
		f.Starved = false
	}
	if err == nil {
		err = i.wrapAnswerError(k, abi.Codecs[k].CheckAnswer(frame, i.arena(), result))
	}
	r.Cause = CauseOf(err)
	return err
}
