package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/reporttest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// FuzzCounters checks that a file is either refused as a whole, or restored into a
// State that plans.
func FuzzCounters(f *testing.F) {
	s := testState(f, PolicyDefault)
	r, err := loadreport.Decode(reporttest.Report())
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
