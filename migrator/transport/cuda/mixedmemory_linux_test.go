package cuda

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/shm"
	"github.com/cascadeinfer/cascade/migrator/transport/tcp"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// TestMixed moves blocks between a pool on a GPU and one in the machine's memory, either
// way, whose sums are of two kinds: over tcp, and by a NIC.
func TestMixed(t *testing.T) {
	g := warm(t, 0)
	byTCP := func(t *testing.T, m *transport.Memory) transport.Transport {
		tr, err := tcp.New(tcp.Config{Pool: transporttest.Pool{M: m}})
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	byNIC := func(t *testing.T, m *transport.Memory) transport.Transport { return overRDMA(t, m) }
	run := transporttest.Run
	if raced && os.Getenv("CASCADE_TEST_ALL") == "" { // the suites take minutes
		run = func(t *testing.T, make func(*testing.T, transport.Layout, transport.Layout) transporttest.Pair) {
			onePull(t, make(t, small, small))
		}
	}
	for name, over := range map[string]func(*testing.T, *transport.Memory) transport.Transport{"tcp": byTCP, "verbs": byNIC} {
		onGPU := func(t *testing.T, l transport.Layout) transporttest.End {
			m, mirror := made(t, g, VMM, l)
			return transporttest.End{Transport: over(t, m), Memory: m, Mirror: mirror}
		}
		onHost := func(t *testing.T, l transport.Layout) transporttest.End {
			m := transporttest.HeapMemory(l)
			return transporttest.End{Transport: over(t, m), Memory: m}
		}
		if name == "verbs" && os.Getenv("CASCADE_TEST_CUDA") != "" {
			continue // a fake NIC reaches no real memory
		}
		t.Run(name+" from the GPU", func(t *testing.T) {
			run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
				return transporttest.Pair{Source: onGPU(t, source), Target: onHost(t, target)}
			})
		})
		t.Run(name+" to the GPU", func(t *testing.T) {
			run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
				return transporttest.Pair{Source: onHost(t, source), Target: onGPU(t, target)}
			})
		})
	}
	g.unmapIdle(time.Now().Add(time.Hour))
}

// onePull moves all blocks, once well and once with a sum that one has not.
func onePull(t *testing.T, pair transporttest.Pair) {
	t.Helper()
	open := moving(t, pair)
	pattern(pair.Source.Memory.Bytes)
	if pair.Source.Mirror != nil {
		pair.Source.Mirror.Store()
	}
	p, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	plan := straight(pair.Source.Memory, 0, 0, small.Blocks)
	if _, err := p.Pull(t.Context(), plan); err != nil {
		t.Error(err)
	}
	if pair.Target.Mirror != nil {
		pair.Target.Mirror.Load()
	}
	for b := range uint32(small.Blocks) {
		if !slices.Equal(pair.Target.Memory.RegionBytes(b, 1), pair.Source.Memory.RegionBytes(b, 1)) {
			t.Fatalf("block %d differs", b)
		}
	}
	plan.Sums[7]++
	var corrupt *transport.CorruptError
	if _, err := p.Pull(t.Context(), plan); !errors.As(err, &corrupt) || !slices.Equal(corrupt.Blocks, []int{3}) {
		t.Errorf("a wrong sum: %v", err)
	}
}

// TestMixedChoice has each end of such a pair say by itself which transports are out of
// the question; tcp is what is left to both.
func TestMixedChoice(t *testing.T) {
	g := gpu(t)
	onGPU, _ := made(t, g, VMM, small)
	defer onGPU.Close()
	dir := short(t)
	for where, m := range map[string]*transport.Memory{"on a GPU": onGPU, "in the machine's memory": transporttest.HeapMemory(small)} {
		pool := transporttest.Pool{M: m}
		here, err := New(Config{Dir: dir, Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		shared, err := shm.New(shm.Config{Dir: dir, Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		byHost, err := tcp.New(tcp.Config{Pool: pool})
		if err != nil {
			t.Fatal(err)
		}
		choose := transport.NewChooser(here, shared, byHost)
		for _, tr := range choose.TransportsToProbe(time.Now()) {
			choose.RecordProbe(tr.Name(), tr.Probe(t.Context()), time.Now())
		}
		// What the other end has that works.
		theirs := []string{"shm", "tcp"}
		if m != onGPU {
			theirs = []string{"cuda", "tcp"}
		}
		order := choose.Rank(transport.Pair{Peer: "a", Host: "n", PeerHost: "n"}, theirs, time.Now())
		if len(order) != 1 || order[0].Transport.Name() != "tcp" {
			t.Errorf("a pool %s: blocks would come by %v", where, order)
		}
	}
}
