package calllog

import (
	"bytes"
	"compress/flate"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// Output returns the output of a record, without the unused bytes behind it.
func Output(r *host.Record) []byte {
	switch r.Kind {
	case abi.Select, abi.Place: // the value is an index
		return nil
	}
	_, n := abi.Unpack(r.Result)
	return r.Output[:min(uint64(n), uint64(len(r.Output)))]
}

// SameAnswer reports whether two records of one frame have the same answer. It ignores
// their fuel.
func SameAnswer(a, b *host.Record) bool {
	if a.Cause != 0 || b.Cause != 0 {
		return a.Cause == b.Cause
	}
	return a.Result == b.Result && slices.Equal(Output(a), Output(b))
}

// ErrUnexpected means that a module does not give the expected answer.
var ErrUnexpected = errors.New("not as expected")

// Golden reads expectations: a call log in which every call has an answer, and no answer
// is of a module with another digest.
func Golden(text []byte, module [32]byte) ([]Call, error) {
	all, err := Read(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("expectations: %w", err)
	}
	for n, f := range all {
		switch {
		case f.Answer == nil || f.Answer.Cause != 0:
			return nil, fmt.Errorf("expectations: frame %d has no answer", n)
		case f.Answer.Module != [32]byte{} && f.Answer.Module != module:
			return nil, fmt.Errorf("expectations: frame %d was answered by another module, %x", n, f.Answer.Module)
		}
	}
	return all, nil
}

// Check replays the expected calls of a kind in their order on an instance, which must be
// new and configured. The error wraps ErrUnexpected when an answer or its fuel differs,
// and a *host.Fault when the module fails.
func Check(ctx context.Context, i *host.Instance, k abi.Kind, expected []Call) error {
	var got host.Record
	for n, f := range expected {
		if abi.KindOf(f.Frame) != k {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := i.Replay(f.Frame, &got); err != nil {
			return fmt.Errorf("expected frame %d: %w", n, err)
		}
		if !SameAnswer(&got, f.Answer) {
			return fmt.Errorf("expected frame %d: %w: result %#x, and %#x when it was signed", n, ErrUnexpected, got.Result, f.Answer.Result)
		}
		if f.FuelComparable && got.Fuel != f.Answer.Fuel {
			return fmt.Errorf("expected frame %d: %w: %d ticks, and %d when it was signed", n, ErrUnexpected, got.Fuel, f.Answer.Fuel)
		}
	}
	return nil
}

// Answer returns calls of one kind with the answers of a module, made in the order of
// Check. It omits calls that the module does not answer. The instances that instance
// returns must be new and configured.
func Answer(ctx context.Context, instance func() (*host.Instance, error), all []Call) ([]Call, error) {
	for {
		answered, at, err := answer(ctx, instance, all)
		if err != nil || at < 0 {
			return answered, err
		}
		// Start again without the failed call, which may affect the later answers.
		all = slices.Delete(slices.Clone(all), at, at+1)
	}
}

// answer answers calls until the first that the module does not answer, and returns its
// index; −1 when it answers all.
func answer(ctx context.Context, instance func() (*host.Instance, error), all []Call) (answered []Call, at int, err error) {
	i, err := instance()
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, i.Close()) }()
	for n, f := range all {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		r := new(host.Record)
		if err := i.Replay(f.Frame, r); err != nil {
			return nil, n, nil
		}
		answered = append(answered, Call{f.Frame, r, true})
	}
	return answered, -1, nil
}

// Deflated returns the size of a call log in a signature file, which compresses it.
func Deflated(text []byte) int {
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.BestCompression) // the level is valid
	_, _ = w.Write(text)                                 // a bytes.Buffer returns no errors
	_ = w.Close()
	return out.Len()
}
