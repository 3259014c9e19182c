package slothost

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// change returns a change between two plans with the given number of replicas.
func change(replicas int) abi.Change {
	ids := make([]policies.ReplicaID, replicas)
	for i := range ids {
		ids[i] = policies.ReplicaID(fmt.Sprintf("replica-%060d", i))
	}
	return abi.Change{Now: policies.OneStagePlan("m", ids), Next: policies.OneStagePlan("m", ids)}
}

// number returns the number of a recorded call.
func number(r host.Record) uint64 { return binary.LittleEndian.Uint64(r.Frame[64:]) }

func noon() policies.Micros { return 77 }

// TestRecordsAreBounded checks that the latest records are kept, within the bound of their
// number and, for kinds that decide for many requests, of their bytes.
func TestRecordsAreBounded(t *testing.T) {
	one := len(testkit.Must(abi.GuardCodec.Frame(abi.Call{Room: abi.MaxState}, change(100))))
	for _, c := range []struct {
		bytes      int
		perRequest bool
		want       int
	}{{0, true, mostRecords}, {3*one + one/2, false, 3}, {1, false, 1}} {
		r := newRecords(1, c.perRequest, noon)
		if !c.perRequest {
			r.bytes = c.bytes
		}
		for n := range mostRecords + 20 {
			recordNative(r, &guardKind, change(100), abi.GuardAnswer{})
			got, added := r.since(0)
			if want := min(n+1, c.want); len(got) != want || number(got[want-1]) != uint64(n+1) || added != uint64(n+1) {
				t.Fatalf("%d bytes: %d records after %d calls, want the last %d", c.bytes, len(got), n+1, want)
			}
			for i := 1; i < len(got); i++ {
				if number(got[i]) != number(got[i-1])+1 {
					t.Fatalf("call %d behind %d", number(got[i]), number(got[i-1]))
				}
			}
		}
	}
}

// TestRecordsSince checks that records are returned once to a caller who remembers how many
// it has seen, also those that were overwritten meanwhile.
func TestRecordsSince(t *testing.T) {
	r := newRecords(1, true, noon)
	seen, want := uint64(0), uint64(0)
	for _, more := range []int{1, 0, 5, mostRecords + 7, 3} {
		for n := range more {
			recordNative(r, &outlierKind, abi.Loads{Own: policies.Tokens(n)}, 0)
		}
		want += uint64(more)
		got, added := r.since(seen)
		if len(got) != min(more, mostRecords) || added != want || more > 0 && number(got[len(got)-1]) != want {
			t.Errorf("%d of %d new records", len(got), more)
		}
		seen = added
	}
}

// TestRecordedCalls checks that the record of a small call after a large one has the frame of
// the small one, that a record that was returned does not change, and that what cannot be
// encoded is not recorded.
func TestRecordedCalls(t *testing.T) {
	r := newRecords(1, true, noon)
	for range mostRecords {
		recordNative(r, &selectKind, bids(30, 1), 2)
	}
	first, _ := r.since(0)
	was := first[0].Frame
	copied := slices.Clone(was)
	recordNative(r, &selectKind, bids(3, 1), 1)
	recordNative(r, &partitionKind, workloads()[0], abi.PartitionAnswer{Err: errors.New("a caller's")})
	got, added := r.since(mostRecords)
	if len(got) != 1 || added != mostRecords+1 || len(got[0].Frame) != len(selectFrame(0, bids(3, 1))) || !bytes.Equal(was, copied) {
		t.Errorf("%d records, %d added", len(got), added)
	}
	if all, _ := r.since(0); len(all) != mostRecords-1 { // the place of the next one is empty
		t.Errorf("%d records are left", len(all))
	}
	if w, a, err := host.Decode(&got[0], &abi.SelectCodec); err != nil || a != 1 || len(w) != 3 {
		t.Errorf("%v, %d, %v", w, a, err)
	}
}

// TestSampling checks that one call in every is recorded, all for 1 and none for 0.
func TestSampling(t *testing.T) {
	for every, want := range map[int]uint64{0: 0, 1: 1000, 10: 100} {
		r := newRecords(every, true, noon)
		for range 1000 {
			recordNative(r, &outlierKind, abi.Loads{Own: 1000, Mean: 10}, 0)
		}
		if _, added := r.since(0); added != want {
			t.Errorf("one in %d: %d of 1000 recorded, want %d", every, added, want)
		}
	}
}

// TestNativeIsRecordedAsModulesAre checks that a native policy and the same policy as a
// module leave the same records of the same calls, except for module and fuel.
func TestNativeIsRecordedAsModulesAre(t *testing.T) {
	code := hosttest.Guest(t)
	for k := abi.Partition; k < abi.NumKinds; k++ {
		c := config(t)
		c.Cache = hosttest.Cache(t)
		linked, s := alone(t, c, k)
		loaded, other := alone(t, c, k)
		m := compiled(t, other, code)
		other.modules[7] = m
		other.setRoute(routeTo(7))
		for r, n := hosttest.NewRandom(5), 0; n < 20; n++ {
			testkit.NoError(t, r.Compare(k, everyPolicy(linked), everyPolicy(loaded)))
		}
		got, _ := s.own.since(0)
		want, _ := m.calls.since(0)
		if len(got) != 20 || len(want) != 20 {
			t.Fatalf("%s: %d records, of the module %d", k, len(got), len(want))
		}
		for i := range got {
			g, w := got[i], want[i]
			// The value of an answer holds the length of its output; the rest is unused.
			if _, n := abi.Unpack(g.Result); g.Kind != abi.Select && g.Kind != abi.Place {
				g.Output, w.Output = g.Output[:n], w.Output[:n]
			}
			w.Module, w.Fuel = g.Module, 0
			g.Frame, w.Frame = g.Frame[80:], w.Frame[80:] // the time differs
			if !g.Equal(&w) {
				t.Errorf("record %d of %s: %+v, the module's %+v", i, g.Kind, g, w)
			}
		}
		other.setRoute(routeTo(0))
	}
}

// TestInvalidWorkload checks that an error of the caller is returned and not recorded.
func TestInvalidWorkload(t *testing.T) {
	slots, _ := alone(t, config(t), abi.Partition)
	if _, err := slots.Partitioner("m").Partition(policies.Workload{}); !errors.As(err, new(*policies.Violation)) || len(slots.Records(abi.Partition)) != 0 {
		t.Errorf("%v, %d records", err, len(slots.Records(abi.Partition)))
	}
}

// TestStatesOfModules checks that each of the last two modules gets its own state back, and
// no other.
func TestStatesOfModules(t *testing.T) {
	var m memory
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

// TestSeeds checks that the seed of a call is that of splitmix64, on every host.
func TestSeeds(t *testing.T) {
	for x, want := range map[uint64]uint64{0: 0xe220a8397b1dcdaf, 1: 0x910a2dec89025cc1, 1 << 63: 0x481ec0a212a9f3db} {
		if got := mix(x); got != want {
			t.Errorf("%d: %#x, want %#x", x, got, want)
		}
	}
}

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
	if got := Decide(&n, &abi.SelectCodec, bids(4, 1)); got != n.Selector.Select(bids(4, 1)) {
		t.Errorf("decided %d", got)
	}
}

// TestAnswerOfFrames checks which frames the native policy answers, and the cause of those
// that it does not.
func TestAnswerOfFrames(t *testing.T) {
	good := selectFrame(3, bids(4, 1))
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
		if i, err := abi.DecodeSelectResult(r.Result, 4); c.cause == 0 && (err != nil || i != natives.Selector.Select(bids(4, 1))) {
			t.Errorf("%s: answered %d: %v", name, i, err)
		}
	}
	var r host.Record
	testkit.NoError(t, natives.Answer(testkit.Must(abi.GuardCodec.Frame(abi.Call{}, change(4))), &r))
	if _, n := abi.Unpack(r.Result); n == 0 || len(r.Output) < int(n) || len(slices.Compact(slices.Clone(r.Output))) == 1 {
		t.Errorf("the output of a denial: %+v", r)
	}
}
