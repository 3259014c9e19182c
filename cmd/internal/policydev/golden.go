package policydev

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// GoldenSuffix is appended to the name of a module for the file with its expected answers.
const GoldenSuffix = ".golden"

const (
	// maxExpected bounds the expected calls of each kind.
	maxExpected = 12
	// maxDeflated bounds their size in a signature file, in bytes before base64. It leaves
	// room for a statement and sixteen signatures.
	maxDeflated = (sign.MaxFile - 6<<10) / 4 * 3
)

// Expect returns a call log with a module's answers and their fuel, and the number of
// calls. The calls are the smallest of the recorded ones, the protocol's golden vectors
// and random ones, as many as fit into a signature file. It omits calls that the module
// does not answer.
func Expect(ctx context.Context, s *Subject, recorded []Frame, seed uint64) ([]byte, int, error) {
	pools := make(map[abi.Kind][]Frame)
	for _, k := range s.kinds() {
		pool, err := expectedCalls(k, recorded, seed)
		if err == nil {
			pool, err = calllog.Answer(ctx, s.instance, pool[:min(len(pool), maxExpected)])
		}
		if err != nil {
			return nil, 0, err
		}
		if len(pool) == 0 {
			return nil, 0, fmt.Errorf("%s: it answers no call of kind %s", s.Path, k)
		}
		pools[k] = pool
	}
	for most := maxExpected; most > 0; most-- {
		var all []Frame
		for _, k := range s.kinds() { // omitting the last calls does not change the answers to the first
			all = append(all, pools[k][:min(len(pools[k]), most)]...)
		}
		var text bytes.Buffer
		if err := calllog.Write(&text, all); err != nil {
			return nil, 0, err
		}
		if text.Len() <= sign.MaxGolden && calllog.Deflated(text.Bytes()) <= maxDeflated {
			return text.Bytes(), len(all), nil
		}
	}
	return nil, 0, fmt.Errorf("%s: one call of each kind is more than the %d bytes that a signature file has room for: record smaller ones, and name them with --frames", s.Path, maxDeflated)
}

// expectedCalls returns the calls of a kind that may become expectations, smallest first.
func expectedCalls(k abi.Kind, recorded []Frame, seed uint64) ([]Frame, error) {
	var pool []Frame
	add := func(frame []byte) {
		if abi.KindOf(frame) == k && !slices.ContainsFunc(pool, func(o Frame) bool { return bytes.Equal(o.Frame, frame) }) {
			pool = append(pool, Frame{Frame: frame})
		}
	}
	for _, f := range recorded {
		add(f.Frame)
	}
	vectors, err := goldenVectors(k)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(vectors)) {
		if requiresAnswer(vectors[name]) {
			add(vectors[name])
		}
	}
	random, err := randomFrames(seed, k, 4*maxExpected)
	for _, f := range random {
		add(f.Frame)
	}
	slices.SortStableFunc(pool, func(a, b Frame) int { return len(a.Frame) - len(b.Frame) })
	return pool, err
}

// ReadGolden reads a golden file without checking its content.
func ReadGolden(path string) ([]byte, error) {
	return atomicfile.Read(path, sign.MaxGolden)
}

// expected checks the expected answers on a new instance.
func (t *tester) expected() (string, error) {
	if len(t.config.Golden) == 0 {
		return "", skipError("--update records the present answers")
	}
	all, err := calllog.Golden(t.config.Golden, t.subject.Module.SHA256())
	n := 0
	for _, f := range all {
		if abi.KindOf(f.Frame) == t.kind {
			n++
		}
	}
	if err == nil {
		err = t.withInstance(func(i *host.Instance) error { return calllog.Check(t.ctx, i, t.kind, all) })
	}
	if err != nil {
		err = fmt.Errorf("%w: if it was recorded with another --configuration, give that; if the change is intended, --update records the present answers", err)
	}
	return fmt.Sprintf("%s as recorded, with the same fuel", plural(n, "answer")), err
}
