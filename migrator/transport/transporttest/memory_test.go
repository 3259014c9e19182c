package transporttest_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// newPair returns two ends in a network of their own.
func newPair(t testing.TB, source, target transport.Layout, faults *transporttest.Faults) transporttest.Pair {
	t.Helper()
	network := &transporttest.Network{}
	end := func(name string, l transport.Layout) transporttest.End {
		m := transporttest.HeapMemory(l)
		tr := testkit.Must(transporttest.NewMemory(transporttest.MemoryConfig{Network: network, Name: name, Pool: transporttest.Pool{M: m}, Faults: faults}))
		return transporttest.End{Transport: tr, Memory: m}
	}
	return transporttest.Pair{Source: end("source", source), Target: end("target", target)}
}

func newEnds(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return newPair(t, source, target, nil)
}

func TestConformance(t *testing.T) { transporttest.Run(t, newEnds) }

func TestAllocations(t *testing.T) { transporttest.RunAllocations(t, newEnds) }
