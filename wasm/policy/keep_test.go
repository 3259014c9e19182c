package policy

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
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

// TestLargeRecordsAreFew checks that an instance keeps the latest records within Keep and
// KeepBytes for kinds that are not decided per request, and within Keep for the others.
func TestLargeRecordsAreFew(t *testing.T) {
	one := len(frameOf(&guardAdapter, abi.Call{Room: abi.MaxState}, change(100)))
	for _, c := range []struct{ bytes, want int }{{0, 5}, {3*one + one/2, 3}, {1, 1}} {
		m := running(t, Config{Every: 1, Keep: 5, KeepBytes: c.bytes, Instances: 1, Failures: -1}, host.Config{}, hosttest.Policy(
			hosttest.Function(abi.Guard.Export(), nil, hosttest.Result(0, 0)),
			hosttest.LeastLoad()).Encode())
		linked := NewNativeRecorder(natives, 1, 5, nil)
		if c.bytes > 0 {
			linked.keep = c.bytes
		}
		for _, p := range []interface {
			Guard
			policies.Selector
			Records() []host.Record
		}{m, linked} {
			for n := range 23 {
				p.Guard(change(100))
				got := p.Records()
				if want := min(n+1, c.want); len(got) != want || number(got[want-1]) != uint64(n+1) {
					t.Fatalf("%T, %d bytes: %d records after %d calls, want the last %d", p, c.bytes, len(got), n+1, want)
				}
				for i := 1; i < len(got); i++ {
					if number(got[i]) != number(got[i-1])+1 {
						t.Fatalf("%T: call %d behind %d", p, number(got[i]), number(got[i-1]))
					}
				}
			}
			for range 5 {
				p.Select(bids(9))
			}
			if got := p.Records(); len(got) != 5 || got[0].Kind != abi.Select {
				t.Errorf("%T: %d records of calls for bids", p, len(got))
			}
		}
	}
}

// TestSmallRecordsStay checks that a large record of a plan displaces no records of bids.
func TestSmallRecordsStay(t *testing.T) {
	r := NewNativeRecorder(natives, 1, 5, nil)
	r.keep = 1
	for range 3 {
		r.Select(bids(9))
	}
	r.Guard(change(100))
	if got := r.Records(); len(got) != 4 || got[0].Kind != abi.Select || got[3].Kind != abi.Guard {
		t.Errorf("%d records", len(got))
	}
}

// TestBusyRecordsStay checks that a record which is being written is not dropped, nor
// released.
func TestBusyRecordsStay(t *testing.T) {
	r := NewNativeRecorder(natives, 1, 2, nil)
	r.keep = 1
	r.Guard(change(100))
	first := &r.ring[1]
	first.busy.Store(true)
	r.Guard(change(100))
	if !first.busy.Load() || first.call != 1 {
		t.Errorf("busy %v, of call %d", first.busy.Load(), first.call)
	}
	if got := r.Records(); len(got) != 1 || number(got[0]) != 2 {
		t.Errorf("%d records", len(got))
	}
	first.busy.Store(false)
	if r.trim(); first.call != 0 {
		t.Error("the oldest record is still there")
	}
}

// TestSizeOfRecords checks what counts as the memory of a record.
func TestSizeOfRecords(t *testing.T) {
	r := host.Record{Frame: make([]byte, 3, 10), Output: make([]byte, 1, 30)}
	if got := held(&r) + held(&host.Record{}); got != 40 {
		t.Errorf("%d bytes, want 40", got)
	}
}

// TestRecordedCalls checks that the record of a small call after a large one has the frame of
// the small one, and that recorded calls count in the fuel.
func TestRecordedCalls(t *testing.T) {
	m := stopped(t, Config{Instances: 1, Every: 1, Keep: 1}, hosttest.LeastLoadModule())
	linked := NewNativeRecorder(natives, 1, 1, nil)
	for _, p := range []interface {
		policies.Selector
		Records() []host.Record
	}{m, linked} {
		p.Select(bids(30))
		p.Select(bids(3))
		got := p.Records()
		frame := slices.Clone(got[0].Frame)
		if p.Select(bids(7)); !slices.Equal(got[0].Frame, frame) {
			t.Errorf("%T: a record that was returned has changed", p)
		}
		if want := len(frameOf(&selectAdapter, abi.Call{}, bids(3))); len(got) != 1 || len(got[0].Frame) != want {
			t.Errorf("%T: %d records, with a frame of %d bytes, want %d", p, len(got), len(got[0].Frame), want)
		}
	}
	if st := m.Stats(); st.Fuel.Last <= 0 || st.Fuel.Max < st.Fuel.Last {
		t.Errorf("%+v", st.Fuel)
	}
}
