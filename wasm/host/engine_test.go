package host

import (
	"bytes"
	"context"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// TestEngineShares checks that the code of a module that is loaded for two kinds is shared
// until both are closed.
func TestEngineShares(t *testing.T) {
	one := hosttest.Policy(hosttest.LeastLoad()).Encode()
	other := hosttest.Policy(hosttest.LeastLoad(hosttest.I32(1), hosttest.Drop)).Encode()
	for name, dir := range map[string]string{"memory": "", "cache": t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			e := NewEngine()
			open := func(c Config, code []byte) *Module {
				t.Helper()
				c.Engine, c.Cache = e, dir
				return testkit.Must(Load(context.Background(), c, code))
			}
			a, b := open(Config{}, one), open(Config{Kinds: []abi.Kind{abi.Select}}, one)
			different := open(Config{}, other)
			smaller := Config{}
			smaller.Limits[abi.Select].Pages = 2
			bounded := open(smaller, one)
			if a.program != b.program || a.program == different.program || a.program == bounded.program || len(e.programs) != 3 {
				t.Errorf("%p, %p, %p, %p: %d programs", a.program, b.program, different.program, bounded.program, len(e.programs))
			}
			testkit.NoError(t, a.Close())
			if got := one16(t, b); got != (bidask.LeastLoad{}).Select(sixteen()) {
				t.Errorf("the module that is left selects %d", got)
			}
			for _, m := range []*Module{b, different, bounded} {
				testkit.NoError(t, m.Close())
			}
			if len(e.programs) != 0 {
				t.Errorf("%d programs are left", len(e.programs))
			}
			again := open(Config{}, one)
			one16(t, again)
			testkit.NoError(t, again.Close())
		})
	}
}

// one16 selects one of sixteen bids on a new instance. It may be called from any goroutine.
func one16(t *testing.T, m *Module) int {
	t.Helper()
	i := testkit.Must(m.Instantiate())
	defer i.Close()
	got, err := i.Select(abi.Call{}, sixteen())
	if err != nil {
		t.Error(err)
	}
	return got
}

// TestMemoryIsClean checks that an instance does not see the memory content of an earlier
// one, whether that one failed or not.
func TestMemoryIsClean(t *testing.T) {
	e := NewEngine()
	m := load(t, Config{Engine: e}, hosttest.Policy(hosttest.LeastLoad(hosttest.OneIn(5, hosttest.Unreachable))).Encode())
	var first [32]byte
	for id := range uint64(20) {
		i, err := m.Instantiate()
		testkit.NoError(t, err)
		if h := i.Hash(); id == 0 {
			first = h
		} else if h != first {
			t.Fatalf("instance %d does not begin as the first did", id)
		}
		_, err = i.Select(abi.Call{ID: id}, sixteen())
		if id%5 != 0 && err != nil || i.Hash() == first {
			t.Fatalf("instance %d: %v", id, err)
		}
		i.Close()
		if i.Hash() == first {
			t.Error("a closed instance has a memory")
		}
	}
}

// TestMemory checks that a memory keeps its content as it grows, up to its limit.
func TestMemory(t *testing.T) {
	m := new(memory)
	l := m.Allocate(64<<10, 1<<20)
	copy(l.Reallocate(64<<10), "small")
	if large := l.Reallocate(128 << 10); !bytes.HasPrefix(large, []byte("small\x00")) || len(large) != 128<<10 {
		t.Fatalf("it grew to %d bytes, %q", len(large), large[:8])
	}
	if l.Reallocate(1<<20+1) != nil {
		t.Error("it grew beyond what it may have")
	}
	m.Free()
	m.Free()
}

// TestEngineInUse loads, calls and closes the same modules in many goroutines.
func TestEngineInUse(t *testing.T) {
	e := NewEngine()
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for n := range 20 {
				code := hosttest.Policy(hosttest.LeastLoad(hosttest.I32(int32((g+n)%3)), hosttest.Drop)).Encode()
				m, err := Load(context.Background(), Config{Engine: e}, code)
				if err != nil {
					t.Error(err)
					return
				}
				one16(t, m)
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if len(e.programs) != 0 {
		t.Errorf("%d programs are left", len(e.programs))
	}
}
