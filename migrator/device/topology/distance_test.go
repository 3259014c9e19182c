package topology_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies/links"
)

// vertex is a thing of a machine's tree, for the oracle: devices are joined by
// switches, root complexes, NUMA nodes and, above all, the machine.
type vertex struct {
	kind string // "device", "switch", "complex", "numa" or "machine"
	near []*vertex
}

func join(a, b *vertex) { a.near, b.near = append(a.near, b), append(b.near, a) }

// leaf is a device at the end of a branch.
type leaf struct {
	at  *vertex
	pci topology.PCI
}

// grow makes a machine at random: the graph, and the paths as the kernel would
// show them, where each switch is an upstream port and some downstream ones.
func grow(r *rand.Rand) (leaves []leaf) {
	machine := &vertex{kind: "machine"}
	for numa := range 1 + r.IntN(3) {
		socket := &vertex{kind: "numa"}
		join(machine, socket)
		for c := range 1 + r.IntN(3) {
			root := &vertex{kind: "complex"}
			join(socket, root)
			name := fmt.Sprintf("pci%d.%d", numa, c)
			for port := range 1 + r.IntN(3) {
				leaves = branch(r, leaves, root, []string{name, fmt.Sprintf("%s:%d", name, port)}, numa, r.IntN(4))
			}
		}
	}
	return leaves
}

func branch(r *rand.Rand, leaves []leaf, above *vertex, path []string, numa, depth int) []leaf {
	port := path[len(path)-1]
	if depth == 0 {
		device := &vertex{kind: "device"}
		join(above, device)
		return append(leaves, leaf{device, topology.PCI{Address: port + ".dev", NUMA: numa, Path: append(path[:len(path):len(path)], port+".dev")}})
	}
	s := &vertex{kind: "switch"}
	join(above, s)
	path = append(path[:len(path):len(path)], port+".up")
	for i := range 1 + r.IntN(3) {
		down := fmt.Sprintf("%s.%d", port, i)
		leaves = branch(r, leaves, s, append(path[:len(path):len(path)], down), numa, r.IntN(depth))
	}
	return leaves
}

// walk is the dumb answer: what one passes on the shortest way.
func walk(a, b *vertex) links.Distance {
	from := map[*vertex]*vertex{a: a}
	for queue := []*vertex{a}; len(queue) > 0; queue = queue[1:] {
		for _, n := range queue[0].near {
			if from[n] == nil {
				from[n] = queue[0]
				queue = append(queue, n)
			}
		}
	}
	passed := map[string]int{}
	for v := b; v != a; v = from[v] {
		passed[v.kind]++
	}
	switch {
	case a == b:
		return links.SameDevice
	case passed["machine"] > 0:
		return links.System
	case passed["numa"] > 0:
		return links.NUMANode
	case passed["complex"] > 0:
		return links.RootComplex
	case passed["switch"] > 1:
		return links.Switches
	}
	return links.Switch
}

func TestBetweenIsTheWayThroughTheTree(t *testing.T) {
	seen := map[links.Distance]int{}
	for seed := range uint64(60) {
		leaves := grow(rand.New(rand.NewPCG(seed, 1)))
		for _, a := range leaves {
			for _, b := range leaves {
				got, want := topology.Between(a.pci, b.pci), walk(a.at, b.at)
				if got != want {
					t.Fatalf("seed %d: %v to %v is %v, and it should be %v", seed, a.pci.Path, b.pci.Path, got, want)
				}
				seen[got]++
			}
		}
	}
	for d := links.SameDevice; d < links.UnknownDistance; d++ {
		if seen[d] == 0 {
			t.Errorf("no tree had devices at distance %v", d)
		}
	}
}

func TestBetweenWithoutPaths(t *testing.T) {
	at := func(address string, numa int) topology.PCI { return topology.PCI{Address: address, NUMA: numa} }
	for _, c := range []struct {
		a, b topology.PCI
		want links.Distance
	}{
		{at("a", 0), at("A", 1), links.SameDevice},
		{at("a", 0), at("b", 0), links.NUMANode},
		{at("a", 0), at("b", 1), links.System},
		{at("a", topology.Unknown), at("b", 1), links.UnknownDistance},
		{at("", 0), at("", topology.Unknown), links.UnknownDistance},
	} {
		if got := topology.Between(c.a, c.b); got != c.want {
			t.Errorf("%v to %v is %v, and it should be %v", c.a, c.b, got, c.want)
		}
	}
}

func TestNamesAreReadBack(t *testing.T) {
	for d := links.SameDevice; d <= links.UnknownDistance; d++ {
		roundTrip(t, d)
	}
	for k := links.SameGPU; k <= links.TCP; k++ {
		roundTrip(t, k)
	}
	var d links.Distance
	var k links.Kind
	if json.Unmarshal([]byte(`"PIZ"`), &d) == nil || json.Unmarshal([]byte(`"pigeon"`), &k) == nil {
		t.Error("unknown names are accepted")
	}
}

func roundTrip[T comparable](t *testing.T, v T) {
	t.Helper()
	text := testkit.Must(json.Marshal(v))
	var back T
	if err := json.Unmarshal(text, &back); err != nil || back != v {
		t.Errorf("%v became %s and then %v: %v", v, text, back, err)
	}
}
