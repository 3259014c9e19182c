package tcp

import (
	"errors"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

func cardEnd(t testing.TB, l transport.Layout, config Config) transporttest.End {
	card, m := transporttest.NewFakeDevice(l)
	config.Pool = transporttest.Pool{M: m}
	tr, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.End{Transport: tr, Memory: m, Mirror: card}
}

func cards(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return transporttest.Pair{Source: cardEnd(t, source, Config{}), Target: cardEnd(t, target, Config{})}
}

// Pools on devices are moved by way of the host. Under the race detector transport cuda's
// tests do the same, on a driver's memory.
func TestConformanceDevice(t *testing.T) {
	if raced {
		t.Skip("slow under the race detector")
	}
	transporttest.Run(t, cards)
}

func TestAllocationsDevice(t *testing.T) { transporttest.RunAllocations(t, cards) }

// A pull ends when either device fails.
func TestDeviceFails(t *testing.T) {
	l := transport.Layout{Blocks: 4, Regions: []transport.Region{{Stride: 64, Bytes: 64}}}
	for _, name := range []string{"source", "target"} {
		pair := cards(t, l, l)
		end := pair.Source
		if name == "target" {
			end = pair.Target
		}
		p := transporttest.OpenPuller(t, pair)
		end.Mirror.(*transporttest.FakeDevice).Fail = errors.New("the GPU has fallen off the bus")
		plan := transport.Plan{Src: []uint32{0, 3}, Dst: []uint32{1, 2}, Sums: pair.Source.Memory.Sums(nil, []uint32{0, 3})}
		start := time.Now()
		if _, err := p.Pull(t.Context(), plan); err == nil {
			t.Errorf("the %s's device fails: the pull does not", name)
		}
		if took := time.Since(start); took > stallTimeout/2 {
			t.Errorf("the %s's device fails: the pull takes %v", name, took)
		}
		p.Close()
	}
}
