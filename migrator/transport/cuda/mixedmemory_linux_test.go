package cuda

import (
	"os"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/tcp"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// TestMixedMemory pulls between a pool on a GPU and one in host memory, in both
// directions, with both kinds of checksums: over tcp and verbs.
func TestMixedMemory(t *testing.T) {
	g := newWarmGPU(t, 0)
	byTCP := func(t *testing.T, m *transport.Memory) transport.Transport {
		tr := testkit.Must(tcp.New(tcp.Config{Pool: transporttest.Pool{M: m}}))
		return tr
	}
	byNIC := func(t *testing.T, m *transport.Memory) transport.Transport { return newServedVerbs(t, m) }
	for name, over := range map[string]func(*testing.T, *transport.Memory) transport.Transport{"tcp": byTCP, "verbs": byNIC} {
		onGPU := func(t *testing.T, l transport.Layout) transporttest.End {
			m, mirror := newPool(t, g, VMM, l)
			return transporttest.End{Transport: over(t, m), Memory: m, Mirror: mirror, Unbound: name == "verbs"}
		}
		onHost := func(t *testing.T, l transport.Layout) transporttest.End {
			m := transporttest.HeapMemory(l)
			return transporttest.End{Transport: over(t, m), Memory: m, Unbound: name == "verbs"}
		}
		if name == "verbs" && os.Getenv("CASCADE_TEST_CUDA") != "" {
			continue // a fake NIC cannot reach real memory
		}
		t.Run(name+" from the GPU", func(t *testing.T) {
			transporttest.RunShort(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
				return transporttest.Pair{Source: onGPU(t, source), Target: onHost(t, target)}
			})
		})
		t.Run(name+" to the GPU", func(t *testing.T) {
			transporttest.RunShort(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
				return transporttest.Pair{Source: onHost(t, source), Target: onGPU(t, target)}
			})
		})
	}
	g.unmapIdle(time.Now().Add(time.Hour))
}
