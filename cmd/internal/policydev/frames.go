package policydev

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
)

// Frame is a frame with its recorded answer, if any.
type Frame = calllog.Call

// LoadFrames reads a call log.
func LoadFrames(path string) ([]Frame, error) {
	return atomicfile.Decode(path, calllog.Read)
}

// goldenVectors returns the golden vectors of a kind, by name.
func goldenVectors(k abi.Kind) (map[string][]byte, error) {
	names, err := fs.Glob(abi.Vectors, "testdata/*.hex")
	if err != nil {
		return nil, err
	}
	found := map[string][]byte{}
	for _, name := range names {
		text, err := abi.Vectors.ReadFile(name)
		if err != nil {
			return nil, err
		}
		frame, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if abi.KindOf(frame) == k {
			found[strings.TrimSuffix(strings.TrimPrefix(name, "testdata/"), ".hex")] = frame
		}
	}
	return found, nil
}

// randomFrames returns frames with random arguments.
func randomFrames(seed uint64, k abi.Kind, n int) ([]Frame, error) {
	r := newRandom(seed, k)
	frames := make([]Frame, n)
	for i := range frames {
		c := abi.Call{ID: uint64(i), Now: 1_700_000_000_000_000, Seed: r.Uint64()}
		frame, err := r.any(k).frame(c)
		if err != nil {
			return nil, err
		}
		frames[i].Frame = frame
	}
	return frames, nil
}
