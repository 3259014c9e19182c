// Package transporttest tests the contract of transport.Transport: each implementation
// passes Run.
//
// Run drives two ends over real memory and compares bytes only. It knows no
// implementation; what it cannot provoke from outside, such as a peer that violates the
// protocol or a killed process, is covered by the implementation's own tests. FakeDevice
// stands for a GPU, and CompareMethods is the benchmark of all transports.
package transporttest

import (
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
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
	// Unbound is set if receivers read the pool of this source themselves, so that no
	// announcement binds them.
	Unbound bool
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

// Read returns the memory's present bytes.
func (e End) Read() []byte {
	if e.Mirror != nil {
		e.Mirror.Load()
	}
	return e.Memory.Bytes
}

// Fill writes a pattern over the whole memory.
func (e End) Fill(seed uint64) { e.write(func(b []byte) { FillBytes(b, seed) }) }

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
	return &transport.Memory{Layout: l, Bytes: make([]byte, l.MinSize())}
}

// Run tests a transport. make returns a new pair.
func Run(t *testing.T, make func(t *testing.T, source, target transport.Layout) Pair) {
	run(t, make, false)
}

// RunShort is Run without the tests that take long or do not depend on the memory, for
// further combinations of ends that Run tests elsewhere. CASCADE_TEST_ALL makes it Run.
func RunShort(t *testing.T, make func(t *testing.T, source, target transport.Layout) Pair) {
	run(t, make, os.Getenv("CASCADE_TEST_ALL") == "")
}

func run(t *testing.T, make func(t *testing.T, source, target transport.Layout) Pair, short bool) {
	for _, c := range []struct {
		name  string
		test  func(*testing.T, *suite)
		short bool // part of RunShort
	}{
		{"Shuffled", testShuffled, false},
		{"Rounds", testRounds, true},
		{"Corrupt", testCorrupt, true},
		{"BadPlans", testBadPlans, true},
		{"Tickets", testTickets, false},
		{"AttackUnannounced", testUnannounced, true},
		{"Expiry", testExpiry, false},
		{"Deadline", testDeadline, false},
		{"AbortOpen", testAbortOpen, true},
		{"AbortPull", testAbortPull, false},
		{"CloseIsAFence", testClose, true},
		{"RevokeIsAFence", testRevoke, false},
		{"SourceEnds", testSourceEnds, false},
		{"Concurrent", testConcurrent, true},
		{"Memories", testMemories, true},
	} {
		if short && !c.short {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			check := startLeakCheck(t)
			b := &suite{T: t, make: make}
			c.test(t, b)
			b.Stop()
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

// suite is one test with its running pair.
type suite struct {
	*testing.T
	make func(t *testing.T, source, target transport.Layout) Pair
	*Link
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

// start ends the running pair and starts another one.
func (b *suite) start(source, target transport.Layout) {
	b.Helper()
	if b.Link != nil {
		b.Stop()
	}
	pair := b.make(b.T, source, target)
	if err := pair.Source.Transport.Probe(b.Context()); err != nil {
		b.Fatalf("probe: %v", err)
	}
	b.Link = Start(b.T, pair)
}

// requireRefused opens and fails unless the source refuses the ticket.
func (b *suite) requireRefused(what string, receiver policies.ReplicaID, offer transport.Offer) {
	b.Helper()
	p, err := b.OpenOffer(receiver, offer)
	if err == nil {
		p.Close()
	}
	if !errors.Is(err, transport.ErrRefused) {
		b.Errorf("%s: %v, want ErrRefused", what, err)
	}
}

// FillBytes writes a pattern that repeats after a prime number of bytes, so that no two blocks
// of the tests' layouts are equal.
func FillBytes(dst []byte, seed uint64) {
	pattern := make([]byte, 4093)
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range pattern {
		pattern[i] = byte(rng.Uint32())
	}
	for len(dst) > 0 {
		dst = dst[copy(dst, pattern):]
	}
}
