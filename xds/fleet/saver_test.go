package fleet

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/store"
)

// countedSaves are Counters that record how they were saved.
type countedSaves struct {
	mu    sync.Mutex
	calls []string
}

func (c *countedSaves) Load() ([]byte, error) { return nil, nil }

func (c *countedSaves) Save([]byte) error { return c.record("save") }

func (c *countedSaves) SaveLast(data []byte) error {
	if len(data) == 0 {
		return c.record("nothing")
	}
	return c.record("last")
}

func (c *countedSaves) record(call string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
	return nil
}

// TestLastSave checks that a control plane which stops saves its counters by SaveLast, once and
// after all others.
func TestLastSave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		saves := new(countedSaves)
		f, err := New(Config{
			Rules: testRules(PolicyDefault), Replicas: replicas([]string{"r0"}), Store: store.New(store.NewMemory()), Publisher: &plane{t: t}, Counters: saves,
		})
		testkit.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		time.Sleep(saveInterval + saveInterval/2)
		cancel()
		testkit.NoError(t, <-ended)
		if len(saves.calls) != 2 || saves.calls[0] != "save" || saves.calls[1] != "last" {
			t.Errorf("calls %q", saves.calls)
		}
	})
}

// hungSaves are Counters whose writes return when release is closed.
type hungSaves struct {
	countedSaves
	release chan struct{}
}

func (c *hungSaves) Save(data []byte) error {
	<-c.release
	return c.countedSaves.Save(data)
}

// TestLastSaveIsBounded checks that a control plane stops although its disk hangs.
func TestLastSaveIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		saves := &hungSaves{release: make(chan struct{})}
		defer close(saves.release)
		f, err := New(Config{
			Rules: testRules(PolicyDefault), Replicas: replicas([]string{"r0"}), Store: store.New(store.NewMemory()), Publisher: &plane{t: t}, Counters: saves,
		})
		testkit.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		time.Sleep(saveInterval + saveInterval/2)
		cancel()
		stopped := time.Now()
		testkit.NoError(t, <-ended)
		if took := time.Since(stopped); took != lastSaveTimeout {
			t.Errorf("it stopped after %v, want %v", took, lastSaveTimeout)
		}
	})
}
