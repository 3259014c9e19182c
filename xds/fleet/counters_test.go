package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/weights"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

func TestCountersRoundTrip(t *testing.T) {
	s := testState(t, PolicyRoundRobin)
	r, err := loadreport.Decode(goodReport())
	if err != nil {
		t.Fatal(err)
	}
	settleState(s, start, Reported{r})
	anew := r
	anew.Flow.Seen = 5 // the front end was restarted
	settleState(s, start, Reported{anew})
	data, err := s.EncodeCounters(start)
	if err != nil {
		t.Fatal(err)
	}
	restored, err := NewState(testRules(PolicyRoundRobin))
	if err != nil {
		t.Fatal(err)
	}
	if err := restored.RestoreCounters(data); err != nil {
		t.Fatal(err)
	}
	settleState(restored, start.Add(time.Second), Replicas{[]policies.Replica{testReplica("r0"), testReplica("r1")}})
	m := restored.Snapshot(start.Add(time.Second)).Models[0]
	if m.Seen != 82 || m.Flow.Arrivals[2] != 3 {
		t.Errorf("seen %d, arrivals %v", m.Seen, m.Flow.Arrivals)
	}
	// The same front end continues to count; no request is counted twice.
	anew.Flow.Seen = 6
	settleState(restored, start.Add(2*time.Second), Reported{anew})
	if n := restored.Snapshot(start.Add(2 * time.Second)).Models[0].Seen; n != 83 {
		t.Errorf("seen %d after one more request", n)
	}
}

// TestFlowFades checks that the flow of a replica that left is halved per half life,
// and then forgotten.
func TestFlowFades(t *testing.T) {
	s := testState(t, PolicyRoundRobin)
	r, err := loadreport.Decode(goodReport())
	if err != nil {
		t.Fatal(err)
	}
	settleState(s, start, Reported{r})
	settleState(s, start, Replicas{[]policies.Replica{testReplica("r1")}})
	grace, half := s.rules.Grace, s.rules.HalfLife
	for _, c := range []struct {
		age  time.Duration
		want float64
	}{{0, 3}, {grace, 3}, {grace + half, 1.5}, {grace + 2*half, 0.75}, {grace + 7*half, 0}} {
		now := start.Add(c.age)
		settleState(s, now, Tick{})
		if got := s.Snapshot(now).Models[0].Flow.Arrivals[2]; got != c.want {
			t.Errorf("after %v: %v arrivals/s, want %v", c.age, got, c.want)
		}
	}
	if s.registry.Get("r0") != nil {
		t.Error("r0 is not forgotten")
	}
}

// FuzzCounters checks that a file is either refused as a whole, or restored into a
// State that plans.
func FuzzCounters(f *testing.F) {
	s := testState(f, PolicyDefault)
	r, err := loadreport.Decode(goodReport())
	if err != nil {
		f.Fatal(err)
	}
	settleState(s, start, Reported{r})
	data, err := s.EncodeCounters(start)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"models":[{"name":"m","bytes_per_token_milli":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := NewState(testRules(PolicyDefault))
		if err != nil {
			t.Fatal(err)
		}
		if s.RestoreCounters(data) != nil {
			return
		}
		settleState(s, start, Replicas{[]policies.Replica{testReplica("r0"), testReplica("r1")}})
		for i := range 3 {
			settleState(s, start.Add(time.Duration(i)*s.rules.Period), Tick{})
		}
		m := s.Snapshot(start).Models[0]
		if err := m.Plan.Validate(); err != nil {
			t.Error(err)
		}
		if err := m.Flow.Validate(); err != nil {
			t.Error(err)
		}
	})
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	f := CounterFile{filepath.Join(dir, "counters.json")}
	if data, err := f.Load(); err != nil || data != nil {
		t.Errorf("no file: %q, %v", data, err)
	}
	for _, want := range []string{"one", "two, longer"} {
		if err := f.Save([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if data, err := f.Load(); err != nil || string(data) != want {
			t.Errorf("%q, %v", data, err)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 1 {
		t.Errorf("files left behind: %v", files)
	}
	if err := (CounterFile{filepath.Join(dir, "no", "such", "dir")}).Save(nil); err == nil || !strings.Contains(err.Error(), "no") {
		t.Errorf("a directory that is not there: %v", err)
	}
	if data, err := (CounterFile{}).Load(); err != nil || data != nil {
		t.Errorf("the zero value: %q, %v", data, err)
	}
}

// TestRestoredCountersAreNoLoad checks that no load is known after a restart: weights
// stay as they were, and a replica that reports before the others is not compared with
// them.
func TestRestoredCountersAreNoLoad(t *testing.T) {
	loaded := func(id string, held policies.Tokens) Reported {
		r := stagedReport(id)
		r.Load.Held = held
		return Reported{r}
	}
	s := testState(t, PolicyDefault)
	for id, held := range map[string]policies.Tokens{"r0": 90_000, "r1": 1000, "r2": 1000, "r3": 1000} {
		settleState(s, start, loaded(id, held))
	}
	settleState(s, start, Tick{})
	weight := s.registry.Get("r0").Weight
	data, err := s.EncodeCounters(start)
	if err != nil {
		t.Fatal(err)
	}
	now := start.Add(time.Second)
	again, err := NewState(testRules(PolicyDefault))
	if err != nil {
		t.Fatal(err)
	}
	if err := again.RestoreCounters(data); err != nil {
		t.Fatal(err)
	}
	settleState(again, now, Replicas{[]policies.Replica{testReplica("r0"), testReplica("r1"), testReplica("r2"), testReplica("r3")}})
	settleState(again, now, loaded("r0", 90_000))
	settleState(again, now, Tick{})
	if got := again.registry.Get("r0").Weight; weight >= weights.Neutral || got != weight {
		t.Errorf("weight %d, was %d", got, weight)
	}
	if reply, _ := again.Reply("r0"); reply.MeanHeld != 90_000 {
		t.Errorf("r0 is compared with %v", reply.MeanHeld)
	}
}
