package tcp

import (
	"testing"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

func end(t testing.TB, l transport.Layout, c Config) transporttest.End {
	t.Helper()
	m := transporttest.Heap(l)
	c.Pool = transporttest.Pool{M: m}
	tr, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.End{Transport: tr, Memory: m}
}

func TestConformance(t *testing.T) {
	transporttest.Run(t, func(t *testing.T, source, target transport.Layout) transporttest.Pair {
		return transporttest.Pair{Source: end(t, source, Config{}), Target: end(t, target, Config{})}
	})
}
