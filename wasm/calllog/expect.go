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

// SameAnswer reports whether two records of one frame decide the same, whatever fuel it
// took.
func SameAnswer(a, b *host.Record) bool {
	if a.Cause != 0 || b.Cause != 0 {
		return a.Cause == b.Cause
	}
	return a.Result == b.Result && slices.Equal(Output(a), Output(b))
}

// ErrUnexpected says that a module does not answer as it is expected to.
var ErrUnexpected = errors.New("not as expected")

// Golden reads expectations: a file all of whose frames have an answer, of a
// module with this digest if they say of which.
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

// Check has an instance, which must be new and configured, answer the expected
// frames of a kind in their order. An error of another answer, or of other fuel,
// wraps ErrUnexpected; one that the module gave is a *host.Fault, wrapped.
func Check(ctx context.Context, i *host.Instance, k abi.Kind, expected []Call) error {
	var got host.Record
	for n, f := range expected {
		if KindOf(f.Frame) != k {
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

// Answer has a module answer frames of one kind as Check does. Frames that it does
// not answer are left out. Each instance that it gets is new and configured.
func Answer(ctx context.Context, instance func() (*host.Instance, error), all []Call) ([]Call, error) {
	for {
		answered, at, err := answer(ctx, instance, all)
		if err != nil || at < 0 {
			return answered, err
		}
		// It must not have been asked either: what came of that may show later.
		all = slices.Delete(slices.Clone(all), at, at+1)
	}
}

// answer stops at the first frame without an answer, which it returns, −1 for none.
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

// Deflated is how many bytes a file takes where it is sent, in a signature file.
func Deflated(text []byte) int {
	var out bytes.Buffer
	w, _ := flate.NewWriter(&out, flate.BestCompression) // the level is good,
	_, _ = w.Write(text)                                 // and a buffer takes all
	_ = w.Close()
	return out.Len()
}
