package tcp

import (
	"errors"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

func newDeviceEnd(t testing.TB, l transport.Layout, config Config) transporttest.End {
	card, m := transporttest.NewFakeDevice(l)
	config.Pool = transporttest.Pool{M: m}
	tr, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	return transporttest.End{Transport: tr, Memory: m, Mirror: card}
}

func newDevicePair(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return transporttest.Pair{Source: newDeviceEnd(t, source, Config{}), Target: newDeviceEnd(t, target, Config{})}
}

// TestConformanceDevice runs the suite over pools on devices, whose blocks go through
// host memory. Under the race detector the tests of transport cuda do the same on a
// driver's memory.
func TestConformanceDevice(t *testing.T) {
	if raced {
		t.Skip("slow under the race detector")
	}
	transporttest.Run(t, newDevicePair)
}

func TestAllocationsDevice(t *testing.T) { transporttest.RunAllocations(t, newDevicePair) }

// TestDeviceFails checks that a pull ends when either device fails.
func TestDeviceFails(t *testing.T) {
	l := transport.Layout{Blocks: 4, Regions: []transport.Region{{Stride: 64, Bytes: 64}}}
	for _, name := range []string{"source", "target"} {
		pair := newDevicePair(t, l, l)
		end := pair.Source
		if name == "target" {
			end = pair.Target
		}
		p := transporttest.OpenPuller(t, pair)
		end.Mirror.(*transporttest.FakeDevice).Fail = errors.New("the GPU has fallen off the bus")
		plan := transport.Plan{Src: []uint32{0, 3}, Dst: []uint32{1, 2}, Sums: pair.Source.Memory.Sums(nil, []uint32{0, 3})}
		start := time.Now()
		if _, err := p.Pull(t.Context(), plan); err == nil {
			t.Errorf("the %s's device failed, and the pull succeeded", name)
		}
		if took := time.Since(start); took > stallTimeout/2 {
			t.Errorf("the %s's device failed, and the pull took %v", name, took)
		}
		p.Close()
	}
}
