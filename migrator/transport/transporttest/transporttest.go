// Package transporttest tests the contract of transport.Transport: each implementation
// passes Run.
//
// Run drives two ends over real memory and compares bytes only. It knows no
// implementation; what it cannot provoke from outside, such as a peer that violates the
// protocol or a killed process, is covered by the implementation's own tests. FakeDevice
// stands for a GPU, and CompareMethods is the benchmark of all transports.
package transporttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Receiver is the receiver of the tests' pulls.
const Receiver policies.ReplicaID = "target-0"

// patience bounds each call that should end by itself.
const patience = 20 * time.Second

// End is one side of a pair: a transport that does not run yet, and the memory of its
// pool.
type End struct {
	Transport transport.Transport
	Memory    *transport.Memory
	// Mirror is set if the pool is memory that the processor cannot reach: Memory.Bytes
	// is a copy then, which the Mirror keeps equal.
	Mirror Mirror
}

// Mirror synchronizes a device's memory and its copy.
type Mirror interface {
	Store() // copies the copy into the device
	Load()  // copies the device into the copy
}

// write lets f write the memory's bytes.
func (e End) write(f func(b []byte)) {
	f(e.Memory.Bytes)
	if e.Mirror != nil {
		e.Mirror.Store()
	}
}

// read returns the memory's present bytes.
func (e End) read() []byte {
	if e.Mirror != nil {
		e.Mirror.Load()
	}
	return e.Memory.Bytes
}

// fill writes a pattern over the whole memory.
func (e End) fill(seed uint64) { e.write(func(b []byte) { fill(b, seed) }) }

// Pair is two ends that reach each other. The memories have the requested layouts; the
// tests close them.
type Pair struct{ Source, Target End }

// Pool is a transport.Pool of one memory; nil means that the engine is away.
type Pool struct{ M *transport.Memory }

// Memory implements transport.Pool.
func (p Pool) Memory() (*transport.Memory, bool) { return p.M, p.M != nil }

// HeapMemory returns a memory of this layout on the Go heap, which the race detector
// watches.
func HeapMemory(l transport.Layout) *transport.Memory {
	return &transport.Memory{Layout: l, Bytes: make([]byte, Size(l))}
}

// Size returns the size of the smallest memory that a layout fits into.
func Size(l transport.Layout) int64 {
	return l.MinSize()
}

// Run tests a transport. make returns a new pair.
func Run(t *testing.T, make func(t *testing.T, source, target transport.Layout) Pair) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *suite)
	}{
		{"Shuffled", testShuffled},
		{"Empty", testEmpty},
		{"Rounds", testRounds},
		{"Corrupt", testCorrupt},
		{"BadPlans", testBadPlans},
		{"Tickets", testTickets},
		{"Expiry", testExpiry},
		{"Deadline", testDeadline},
		{"AbortOpen", testAbortOpen},
		{"AbortPull", testAbortPull},
		{"CloseIsAFence", testClose},
		{"RevokeIsAFence", testRevoke},
		{"SourceEnds", testSourceEnds},
		{"SourceAway", testSourceAway},
		{"Concurrent", testConcurrent},
		{"Memories", testMemories},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := startLeakCheck(t)
			b := &suite{T: t, make: make}
			c.test(t, b)
			b.stop()
			check()
		})
	}
}

// startLeakCheck records the goroutines and open files, and returns a function that fails
// unless everything that was started since has ended, which it waits for.
func startLeakCheck(t *testing.T) func() {
	ignore := goleak.IgnoreCurrent()
	before := countDescriptors()
	return func() {
		t.Helper()
		for limit := time.Now().Add(patience); ; {
			err := goleak.Find(ignore)
			runtime.GC() // what a finalizer closes is no leak
			after := countDescriptors()
			if err == nil && after <= before {
				return
			}
			if time.Now().After(limit) {
				t.Errorf("%d files were open before the test, %d are after it: %v", before, after, err)
				return
			}
		}
	}
}

// countDescriptors returns the number of open files of the process, 0 if that is unknown.
// It does not count those of a GPU's driver, which opens files at any time and keeps
// them.
func countDescriptors() int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	n := 0
	for _, name := range names {
		if to, _ := os.Readlink("/proc/self/fd/" + name.Name()); !strings.HasPrefix(to, "/dev/nvidia") {
			n++
		}
	}
	return n
}

// suite is one test with its pair.
type suite struct {
	*testing.T
	make func(t *testing.T, source, target transport.Layout) Pair
	Pair
	stopSource, stopTarget func()
	moves                  int
}

// Layouts of the tests: the same region sizes, everything else different.
var (
	wide = transport.Layout{Blocks: 41, Regions: []transport.Region{
		{Offset: 0, Stride: 5000, Bytes: 5000}, {Offset: 41 * 5000, Stride: 8192, Bytes: 700}, {Offset: 41*5000 + 41*8192 + 3, Stride: 64, Bytes: 64},
	}}
	narrow = transport.Layout{Blocks: 60, Regions: []transport.Region{
		{Offset: 1 << 20, Stride: 5120, Bytes: 5000}, {Offset: 7, Stride: 701, Bytes: 700}, {Offset: 1 << 16, Stride: 100, Bytes: 64},
	}}
	// big has blocks that are larger than what a transport copies at a time; large keeps
	// a pull busy for some milliseconds.
	big = transport.Layout{Blocks: 24, Regions: []transport.Region{{Offset: 0, Stride: 600_000, Bytes: 600_000}, {Offset: 24 * 600_000, Stride: 40_000, Bytes: 33_000}}}
	// tiny has more blocks than a transport asks for at a time.
	tiny  = transport.Layout{Blocks: 10_000, Regions: []transport.Region{{Offset: 0, Stride: 16, Bytes: 16}}}
	large = transport.Layout{Blocks: 400, Regions: []transport.Region{{Offset: 0, Stride: 8192, Bytes: 4096}, {Offset: 4096, Stride: 8192, Bytes: 4096}}}
)

// start makes a pair with filled memories and runs both ends.
func (b *suite) start(source, target transport.Layout) {
	b.Helper()
	b.stop()
	b.Pair = b.make(b.T, source, target)
	b.Source.fill(1)
	b.Target.fill(2)
	if err := b.Source.Transport.Probe(b.Context()); err != nil {
		b.Fatalf("probe: %v", err)
	}
	b.stopSource = startTransport(b.T, b.Source.Transport)
	b.stopTarget = startTransport(b.T, b.Target.Transport)
	limit := time.Now().Add(patience)
	for { // Export is the only sign that Run has started
		_, err := b.Source.Transport.Export(b.grant("warm-up"))
		if err == nil {
			b.Source.Transport.Revoke("warm-up")
			return
		}
		if time.Now().After(limit) {
			b.Fatalf("export: %v", err)
		}
		runtime.Gosched()
	}
}

func (b *suite) stop() {
	if b.stopSource != nil {
		b.stopSource()
		b.stopTarget()
		b.stopSource, b.stopTarget = nil, nil
		b.Source.Memory.Close()
		b.Target.Memory.Close()
	}
}

// startTransport runs a transport and returns a function that stops and joins it.
func startTransport(t *testing.T, tr transport.Transport) func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not return")
		}
	})
}

func (b *suite) grant(move string) transport.Grant {
	return transport.Grant{Migration: move, Epoch: 1, Receiver: Receiver, Deadline: time.Now().Add(patience)}
}

// newMigration returns a new name.
func (b *suite) newMigration() string {
	b.moves++
	return fmt.Sprintf("source-0/%d", b.moves)
}

func (b *suite) export(g transport.Grant) transport.Offer {
	b.Helper()
	offer, err := b.Source.Transport.Export(g)
	if err != nil {
		b.Fatalf("export: %v", err)
	}
	if offer.Transport != b.Source.Transport.Name() {
		b.Errorf("the offer is for transport %q, exported by %q", offer.Transport, b.Source.Transport.Name())
	}
	return offer
}

// open opens a new pull and returns the name of its migration.
func (b *suite) open() (string, transport.Puller) {
	b.Helper()
	move := b.newMigration()
	p, err := b.Target.Transport.Open(b.ctx(), Receiver, b.export(b.grant(move)))
	if err != nil {
		b.Fatalf("open: %v", err)
	}
	return move, p
}

func (b *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	b.Cleanup(cancel)
	return ctx
}

// requireRefused opens and fails unless the source refuses the ticket.
func (b *suite) requireRefused(what string, receiver policies.ReplicaID, offer transport.Offer) {
	b.Helper()
	p, err := b.Target.Transport.Open(b.ctx(), receiver, offer)
	if err == nil {
		p.Close()
	}
	if !errors.Is(err, transport.ErrRefused) {
		b.Errorf("%s: %v, want ErrRefused", what, err)
	}
}

// plan returns a plan of n blocks, chosen and placed at random; each target block once.
func (b *suite) plan(n int, seed uint64) transport.Plan {
	rng := rand.New(rand.NewPCG(seed, 7))
	var p transport.Plan
	to := rng.Perm(b.Target.Memory.Blocks)
	for i := range n {
		p.Src = append(p.Src, uint32(rng.IntN(b.Source.Memory.Blocks)))
		p.Dst = append(p.Dst, uint32(to[i]))
	}
	p.Sums = b.Source.Memory.Sums(nil, p.Src)
	return p
}

// fill writes a pattern that repeats after a prime number of bytes, so that no two blocks
// of the tests' layouts are equal.
func fill(dst []byte, seed uint64) {
	pattern := make([]byte, 4093)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range pattern {
		pattern[i] = byte(rng.Uint32())
	}
	for len(dst) > 0 {
		dst = dst[copy(dst, pattern):]
	}
}
