package policy

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestDecides checks for which kinds there is a native policy.
func TestDecides(t *testing.T) {
	n := Native{Selector: bidask.LeastLoad{}}
	for k := range abi.NumKinds + 2 {
		if n.Decides(k) != (k == abi.Select) {
			t.Errorf("%s with a selector alone: decided %v", k, n.Decides(k))
		}
		if natives.Decides(k) != (k != abi.Configure && k < abi.NumKinds) {
			t.Errorf("%s with every policy: decided %v", k, natives.Decides(k))
		}
	}
	if got := Decide(&n, &abi.SelectCodec, bids(4)); got != n.Selector.Select(bids(4)) {
		t.Errorf("decided %d", got)
	}
}

// TestAnswerOfFrames checks which frames the native policy answers, and the cause of those
// that it does not.
func TestAnswerOfFrames(t *testing.T) {
	good := frameOf(&selectAdapter, abi.Call{ID: 3}, bids(4))
	with := func(change func(frame []byte)) []byte {
		frame := slices.Clone(good)
		change(frame)
		return frame
	}
	kind := func(k abi.Kind) []byte {
		return with(func(frame []byte) { binary.LittleEndian.PutUint16(frame[6:], uint16(k)) })
	}
	for name, c := range map[string]struct {
		frame []byte
		kind  abi.Kind
		cause host.Cause
		text  string
	}{
		"good":              {good, abi.Select, 0, ""},
		"empty":             {nil, abi.NumKinds, host.Unknown, "no native policy decides"},
		"short":             {good[:abi.HeaderSize-1], abi.NumKinds, host.Unknown, "no native policy decides"},
		"another magic":     {with(func(frame []byte) { frame[0]++ }), abi.NumKinds, host.Unknown, "no native policy decides"},
		"configuration":     {kind(abi.Configure), abi.Configure, host.Unknown, "no native policy decides"},
		"kind out of range": {kind(abi.NumKinds + 9), abi.NumKinds, host.Unknown, "no native policy decides"},
		"cut":               {good[:abi.HeaderSize], abi.Select, host.Refused, ""},
	} {
		r := host.Record{Frame: []byte("old"), Output: []byte("old"), Fuel: 7}
		err := Native{Selector: bidask.LeastLoad{}}.Answer(c.frame, &r)
		if (err == nil) != (c.cause == 0) || err != nil && host.CauseOf(err) != c.cause || r.Cause != c.cause || r.Kind != c.kind || !slices.Equal(r.Frame, c.frame) || r.Fuel != 0 || len(r.Output) != 0 {
			t.Errorf("%s: %v: %+v", name, err, r)
		}
		if c.text != "" {
			testkit.WantError(t, err, c.text)
		}
		if i, err := abi.DecodeSelectResult(r.Result, 4); c.cause == 0 && (err != nil || i != natives.Selector.Select(bids(4))) {
			t.Errorf("%s: answered %d: %v", name, i, err)
		}
	}
	var r host.Record
	testkit.NoError(t, natives.Answer(frameOf(&guardAdapter, abi.Call{}, change(4)), &r))
	if _, n := abi.Unpack(r.Result); n == 0 || len(r.Output) < int(n) || len(slices.Compact(slices.Clone(r.Output))) == 1 {
		t.Errorf("the output of a denial: %+v", r)
	}
}
