package server_test

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

const (
	// perNode is what a node may cost above an idle gRPC connection, in bytes;
	// perStream what a stream may cost if the node has several. Most of it is
	// the stacks of a stream's three goroutines.
	perNode   = 64 << 10
	perStream = 48 << 10
)

// clientCount is the number of nodes in the tests of scale.
func clientCount() int {
	switch {
	case testkit.RaceEnabled:
		return 40
	case os.Getenv("CASCADE_TEST_ALL") != "":
		return 1000
	default:
		return 200
	}
}

// memoryInUse returns the memory in use by the heap and by goroutines.
func memoryInUse() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// TestWorkPerChange counts what one changed boundary costs: each node gets one message with
// one resource and sends one acknowledgement (measureChange), and our server allocates at
// most a bound per node, and a third of what go-control-plane's snapshot cache does.
// Counts do not depend on how busy the machine is; BenchmarkBoundary has the times.
func TestWorkPerChange(t *testing.T) {
	testkit.SkipUnderRace(t)
	const nodes, most, rounds = 50, 45, 3
	sets := []resources.Set{fleetSet(t, 100, 1000), fleetSet(t, 100, 1001)}
	planes := startComparison(t, nodes, sets)
	perNode := make([]uint64, len(planes))
	for j, p := range planes {
		var samples []sample
		for i := range rounds {
			samples = append(samples, p.measureChange(t, (i+1)%2, nodes, 1))
		}
		perNode[j] = median(samples, func(s sample) uint64 { return s.allocs }) / nodes
	}
	t.Logf("allocations per node: %d; go-control-plane with a snapshot per node %d, with one %d", perNode[0], perNode[1], perNode[2])
	if perNode[0] > most || 3*perNode[0] > min(perNode[1], perNode[2]) {
		t.Errorf("one boundary costs %d allocations per node, want at most %d and a third of %v", perNode[0], most, perNode[1:])
	}
}

// TestMemory bounds what a node costs that has sent an Envoy's node message of
// 61 KB, subscribes to everything and has acknowledged it: on one stream, and
// on a stream for each type.
func TestMemory(t *testing.T) {
	n := clientCount()
	set := fleetSet(t, 100, 1000)
	c := startClientProcess(t)
	for name, tt := range map[string]struct {
		words []string
		most  uint64
	}{
		"one stream":        {subscriptionWords(set), perNode},
		"a stream per type": {append([]string{"apart"}, subscriptionWords(set)...), 4 * perStream},
	} {
		t.Run(name, func(t *testing.T) {
			m := new(meter)
			m.arm(1 << 30)
			p := newServer(t, m, []resources.Set{set})
			p.set(0)
			c.command("connect", p.address, fmt.Sprint(n))
			idle := memoryInUse()
			c.command(append([]string{"subscribe", p.address}, tt.words...)...)
			settle(t, m, 8*n)
			per := (memoryInUse() - idle) / uint64(n)
			t.Logf("%d nodes: %d bytes each above an idle connection", n, per)
			if per > tt.most && !testkit.RaceEnabled {
				t.Errorf("%d bytes a node, want at most %d", per, tt.most)
			}
			c.command("leave", p.address)
		})
	}
}
