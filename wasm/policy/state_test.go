package policy

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestStatesOfModules checks that each of the last two modules gets its own state back, and
// no other.
func TestStatesOfModules(t *testing.T) {
	var m Memory
	one, two, three := [32]byte{1}, [32]byte{2}, [32]byte{3}
	want := func(module [32]byte, state string) {
		t.Helper()
		var c abi.Call
		m.recall(module, &c)
		if string(c.State) != state || c.Room != abi.MaxState {
			t.Errorf("module %d has the state %q and room for %d, want %q", module[0], c.State, c.Room, state)
		}
	}
	want(one, "")
	m.keep(one, nil, nil)
	if len(m.kept) != 0 {
		t.Error("a module without a state takes a place")
	}
	m.keep(one, []byte("a"), nil)
	m.keep(two, []byte("b"), nil)
	want(one, "a")
	want(two, "b")
	state := []byte("long")
	m.keep(one, state, nil)
	state[0] = 'x' // it is a copy
	want(one, "long")
	m.keep(one, []byte("no"), errors.New("invalid"))
	want(one, "long")
	m.keep(three, []byte("c"), nil) // two is the oldest
	want(one, "long")
	want(two, "")
	want(three, "c")
	m.keep(one, nil, nil)
	want(one, "")
	want(three, "c")
}

// TestStatesReuseBuffers checks that a state that replaces one of the same size does not
// allocate.
func TestStatesReuseBuffers(t *testing.T) {
	testkit.SkipUnderRace(t)
	var m Memory
	state := make([]byte, abi.MaxState)
	m.keep([32]byte{1}, state, nil)
	m.keep([32]byte{2}, state, nil)
	if n := testing.AllocsPerRun(100, func() { m.keep([32]byte{1}, state, nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSeeds checks that the seed of a call is that of splitmix64, on every host.
func TestSeeds(t *testing.T) {
	for x, want := range map[uint64]uint64{0: 0xe220a8397b1dcdaf, 1: 0x910a2dec89025cc1, 1 << 63: 0x481ec0a212a9f3db} {
		if got := mix(x); got != want {
			t.Errorf("%d: %#x, want %#x", x, got, want)
		}
	}
}

// denies is a guard that denies every change.
type denies struct{ hosttest.Native }

func (denies) Guard(abi.Change) (abi.Denial, bool) { return abi.Denial{Detail: "no"}, true }

// TestRecorderAnswersAndCopies checks that the recorder of native policies passes a denial
// on, and that its records are not overwritten by later calls.
func TestRecorderAnswersAndCopies(t *testing.T) {
	n := natives
	n.Guard = denies{}
	r := NewNativeRecorder(n, 1, 1, nil)
	if d, denied := r.Guard(abi.Change{}); !denied || d.Detail != "no" {
		t.Errorf("%+v, denied %v", d, denied)
	}
	r.Select(bids(3))
	first := r.Records()
	frame, output := slices.Clone(first[0].Frame), slices.Clone(first[0].Output)
	r.Select(bids(5))
	if r.Records(); !slices.Equal(first[0].Frame, frame) || !slices.Equal(first[0].Output, output) {
		t.Error("a record that was returned has changed")
	}
}

// TestDefaults checks that every limit has a default.
func TestDefaults(t *testing.T) {
	m := testkit.Must(host.Load(context.Background(), host.Config{}, hosttest.LeastLoadModule()))
	defer m.Close()
	c := testkit.Must(Config{Module: m, Native: natives}.filled())
	if c.Failures != DefaultFailures || c.Window != DefaultWindow || c.Keep != DefaultKeep || c.KeepBytes != DefaultKeepBytes || c.Instances < 1 || c.Clock == nil || c.Logger == nil {
		t.Errorf("%+v", c)
	}
}

// TestLimitsOfConfig checks the limits themselves, which are accepted, and what is beyond
// them.
func TestLimitsOfConfig(t *testing.T) {
	m := testkit.Must(host.Load(t.Context(), host.Config{}, hosttest.LeastLoadModule()))
	defer m.Close()
	for _, c := range []struct {
		Config
		want string
	}{
		{Config{Instances: mostInstances, Keep: mostKeep, Window: 1, KeepBytes: 1, Every: 1}, ""},
		{Config{Instances: mostInstances + 1}, "Instances"}, {Config{Instances: -1}, "Instances"}, {Config{Window: -1}, "Window"},
		{Config{Keep: mostKeep + 1}, "Keep"}, {Config{Keep: -1}, "Keep"}, {Config{KeepBytes: -1}, "KeepBytes"}, {Config{Every: -1}, "Every"},
	} {
		c.Module, c.Native = m, natives
		_, err := c.filled()
		testkit.WantError(t, err, c.want)
	}
}
