package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// executable returns the size of executable anonymous memory, which is machine code.
// (Adjacent mappings are listed as one, so their number is meaningless.)
func executable(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if errors.Is(err, os.ErrNotExist) {
		testkit.Skip(t, testkit.Unavailable{What: "this system does not list the mappings of a process", Remedy: "run it on Linux"})
	}
	testkit.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(maps)) {
		if f := strings.Fields(line); len(f) == 5 && strings.Contains(f[1], "x") {
			var from, to int
			if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err != nil {
				t.Fatal(err)
			}
			n += to - from
		}
	}
	return n
}

// settled collects garbage until code and heap have at most the given sizes, or have stopped
// shrinking, and returns the sizes.
func settled(t *testing.T, code, heap int) (nowCode, nowHeap int) {
	t.Helper()
	nowCode, nowHeap = math.MaxInt, math.MaxInt
	for same := 0; same < 20 && (nowCode > code || nowHeap > heap); same++ {
		runtime.GC() // finalizers run afterwards, in their own goroutine
		time.Sleep(time.Millisecond)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if c, h := executable(t), int(m.HeapAlloc); c < nowCode || h < nowHeap-1<<10 {
			nowCode, nowHeap, same = min(c, nowCode), min(h, nowHeap), 0
		}
	}
	return nowCode, nowHeap
}

// TestModulesLeaveNothing loads and closes many modules, some with a cache and some that
// fail, and checks that their memory is freed. The engine unmaps code in a finalizer, so the
// test waits for the garbage collector.
func TestModulesLeaveNothing(t *testing.T) {
	good := hosttest.Policy(hosttest.LeastLoad(hosttest.OneIn(3, hosttest.Unreachable))).Encode()
	bad := hosttest.Policy(selects(hosttest.I32(0))).Encode()
	dir := t.TempDir()
	round := func(c Config) {
		m := testkit.Must(Load(context.Background(), c, good))
		for id := range uint64(4) {
			i := testkit.Must(m.Instantiate())
			i.Select(abi.Call{ID: id}, sixteen())
			i.Close()
		}
		testkit.NoError(t, m.Close())
		if _, err := Load(context.Background(), c, bad); err == nil {
			t.Fatal("the bad module was loaded")
		}
	}
	code50, heap50 := 0, 0
	for n := range 150 {
		if n == 50 {
			code50, heap50 = settled(t, 0, 0)
		}
		if n%2 == 0 {
			round(Config{})
		} else {
			round(Config{Cache: dir})
		}
	}
	// A leaked module has at least 4 KiB of code.
	code, heap := settled(t, code50+256<<10, heap50+1<<20)
	if code > code50+256<<10 {
		t.Errorf("%d bytes of code after 50 modules, %d after 150", code50, code)
	}
	if heap > heap50+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", heap50, heap)
	}
}

// TestInstancesAreIndependent runs instances of one module concurrently, each in its own
// goroutine, while others are made, trap and are closed.
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
