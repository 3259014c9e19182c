package fleet

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/store"
)

// recordedSaves are Counters that record how they were saved. Save returns when hangs, if there is one, is closed.
type recordedSaves struct {
	hangs chan struct{}
	mu    sync.Mutex
	calls []string
}

func (c *recordedSaves) Load() ([]byte, error) { return nil, nil }

func (c *recordedSaves) Save([]byte) error {
	if c.hangs != nil {
		<-c.hangs
	}
	return c.record("save")
}

func (c *recordedSaves) SaveLast(data []byte) error {
	if len(data) == 0 {
		return c.record("nothing")
	}
	return c.record("last")
}

func (c *recordedSaves) record(call string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
	return nil
}

// TestLastSave checks that a control plane which stops saves its counters by SaveLast, once and after all others, and
// that it stops although its disk hangs.
func TestLastSave(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			saves, want, most := new(recordedSaves), []string{"save", "last"}, time.Duration(0)
			if hangs {
				saves.hangs, want, most = make(chan struct{}), nil, lastSaveTimeout
				defer close(saves.hangs)
			}
			stop := testkit.Run(t, testkit.Must(New(Config{
				Rules: testRules(PolicyDefault), Replicas: replicas([]string{"r0"}), Store: store.New(store.NewMemory()), Publisher: &plane{t: t}, Counters: saves,
			})).Run)
			time.Sleep(saveInterval + saveInterval/2)
			stopped := time.Now()
			stop()
			if took := time.Since(stopped); took != most || !slices.Equal(saves.calls, want) {
				t.Errorf("hangs %v: it stopped after %v, want %v; calls %q, want %q", hangs, took, most, saves.calls, want)
			}
		})
	}
}
