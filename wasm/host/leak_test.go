package host

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// executable counts the anonymous mappings that can be executed: machine code.
func executable(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this system does not show its mappings")
	}
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) == 5 && strings.Contains(f[1], "x") {
			n++
		}
	}
	return n
}

// TestModulesLeaveNothing loads and closes many modules, some with a cache and
// some that fail. Their code is unmapped when they are closed, not when a
// garbage collector finds the time.
func TestModulesLeaveNothing(t *testing.T) {
	code := hosttest.Policy(hosttest.LeastLoad(hosttest.OneIn(3, hosttest.Unreachable))).Encode()
	bad := hosttest.Policy(selects(hosttest.I32(0))).Encode()
	dir := t.TempDir()
	round := func(c Config) {
		m, err := Load(context.Background(), c, code)
		if err != nil {
			t.Fatal(err)
		}
		for id := range uint64(4) {
			i, err := m.Instantiate()
			if err != nil {
				t.Fatal(err)
			}
			i.Select(abi.Call{ID: id}, sixteen())
			i.Close()
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(context.Background(), c, bad); err == nil {
			t.Fatal("the bad module was loaded")
		}
	}
	var was runtime.MemStats
	before := 0
	for n := range 150 {
		if n == 50 {
			before = executable(t)
			runtime.GC()
			runtime.ReadMemStats(&was)
		}
		if n%2 == 0 {
			round(Config{})
		} else {
			round(Config{Cache: dir})
		}
	}
	if after := executable(t); after > before+2 {
		t.Errorf("%d mappings of code after 50 modules, %d after 150", before, after)
	}
	var is runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&is)
	if is.HeapAlloc > was.HeapAlloc+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", was.HeapAlloc, is.HeapAlloc)
	}
}

// TestInstancesAreIndependent runs instances of one module side by side, each
// with its goroutine, while others are made, trap and are closed.
func TestInstancesAreIndependent(t *testing.T) {
	m := load(t, Config{}, hosttest.Policy(hosttest.LeastLoad(hosttest.OneIn(97, hosttest.Unreachable))).Encode())
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			for id := uint64(1); id < 1500; id++ {
				i, err := m.Instantiate()
				if err != nil {
					t.Error(err)
					return
				}
				for ; id%97 != 0; id++ {
					bids := sixteen()[:1+int(id)%16]
					if got, err := i.Select(abi.Call{ID: id}, bids); err != nil || got != (bidask.LeastLoad{}).Select(bids) {
						t.Errorf("goroutine %d, call %d: %d, %v", w, id, got, err)
					}
				}
				if _, err := i.Select(abi.Call{ID: id}, sixteen()); CauseOf(err) != Trapped {
					t.Errorf("goroutine %d, call %d: %v", w, id, err)
				}
				i.Close()
			}
		})
	}
	wg.Wait()
}
