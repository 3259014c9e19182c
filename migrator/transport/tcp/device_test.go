package tcp

import (
	"errors"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

func newDeviceEnd(t testing.TB, l transport.Layout, config Config) transporttest.End {
	card, m := transporttest.NewFakeDevice(l)
	config.Pool = transporttest.Pool{M: m}
	tr := testkit.Must(New(config))
	return transporttest.End{Transport: tr, Memory: m, Mirror: card}
}

func newDevicePair(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return transporttest.Pair{Source: newDeviceEnd(t, source, Config{}), Target: newDeviceEnd(t, target, Config{})}
}

// TestConformanceDevice runs the suite over pools on devices, whose blocks go through
// host memory.
func TestConformanceDevice(t *testing.T) { transporttest.Run(t, newDevicePair) }

func TestAllocationsDevice(t *testing.T) { transporttest.RunAllocations(t, newDevicePair) }

// TestDeviceFails checks that a pull ends when either device fails.
func TestDeviceFails(t *testing.T) {
	layout := transport.Layout{Blocks: 4, Regions: []transport.Region{{Stride: 64, Bytes: 64}}}
	for _, name := range []string{"source", "target"} {
		l := transporttest.Start(t, newDevicePair(t, layout, layout))
		p, plan := l.Open(), l.Plan(2, 1)
		end := map[string]transporttest.End{"source": l.Source, "target": l.Target}[name]
		end.Mirror.(*transporttest.FakeDevice).Fail = errors.New("the GPU has fallen off the bus")
		start := time.Now()
		if _, err := p.Pull(t.Context(), plan); err == nil {
			t.Errorf("the %s's device failed, and the pull succeeded", name)
		}
		if took := time.Since(start); took > stallTimeout/2 {
			t.Errorf("the %s's device failed, and the pull took %v", name, took)
		}
	}
}
