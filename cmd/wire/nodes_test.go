package wire

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

const twoNodes = `- {id: n0, node: a, address: "127.0.0.1:9010", peer: "127.0.0.1:9110", engine: "http://127.0.0.1:8010", tp: 2}
- {id: n1, node: a, address: "127.0.0.1:9011", peer: "127.0.0.1:9111", engine: "http://127.0.0.1:8011", tp: 2}
- {id: n2, node: b, address: "127.0.0.1:9012", peer: "127.0.0.1:9112", engine: "http://127.0.0.1:8012", tp: 2}
`

// TestNodes: a node's own rate reaches sellers and the planner, and only where it
// is set and the faster one.
func TestNodes(t *testing.T) {
	f := load(t, twoNodes+"migration: {link_gbps: 100, node_gbps: 3200}\n")
	r, err := f.Replica("n0")
	if err != nil {
		t.Fatal(err)
	}
	away := f.Market(r, nil).Distance
	p := f.Profiles["m"].TensorParallel(2)
	near := policies.Micros(1000 * float64(p.KVBytesPerToken) / 400e3)
	for id, want := range map[policies.ReplicaID]policies.Micros{"n1": near, "n2": 32 * near, "elsewhere": 32 * near} {
		if got := away(id, 1000); math.Abs(float64(got-want)) > 32 {
			t.Errorf("1000 tokens to %s take %d µs, not %d", id, got, want)
		}
	}
	// n0 and n1 of the four that do not drain are two on a node; r0 is alone.
	far := p.Transfer()
	want := float64(p.KVBytesPerToken)/400e9/2 + far.PerToken/2
	if got := f.Rules().Models[0].Transfer; math.Abs(got.PerToken/want-1) > 1e-9 || got.Base != far.Base {
		t.Errorf("%+v, want %v a token", got, want)
	}
	for _, more := range []string{"", "migration: {link_gbps: 100, node_gbps: 50}\n", "preset: paper\nmigration: {node_gbps: 3200}\n"} {
		f := load(t, twoNodes+more)
		if f.Market(r, nil).Distance != nil || f.Rules().Models[0].Transfer != far {
			t.Errorf("%q: nodes make a difference", more)
		}
	}
}
