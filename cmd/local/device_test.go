package local

import (
	"errors"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/cmd/gpus"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

// onFake are the GPUs of a driver that has none, and how many handles of it live.
func onFake(t *testing.T) (*gpus.GPUs, func() int) {
	t.Helper()
	library := fake.CUDA(t)
	g := gpus.New(library)
	if _, err := g.GPU(0); errors.Is(err, device.ErrNoCgo) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return g, func() int { return fake.Open(t, library).Live("") }
}

// TestDevice moves requests between engines that keep their KV in the memory of a GPU,
// kills an engine and a front amid that, and leaves nothing on the GPU.
func TestDevice(t *testing.T) {
	t.Parallel()
	g, live := onFake(t)
	before := live()
	t.Run("fleet", func(t *testing.T) {
		r := mobile(t, setup{replicas: 3, gpus: g, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
		}})
		load := newTraffic(r, 6, 100, 300, 600)
		load.after(6)
		for _, id := range ids(0, 1, 2) {
			r.order("drain", string(id))
			load.after(6)
			r.order("undrain", string(id))
		}
		r.wait("something has moved", r.moved)
		done, failed := r.moves()
		by := map[string]int{}
		for _, m := range done {
			by[m.Way+" "+m.Transport]++
		}
		if by["live cuda"] == 0 || by["live shm"] > 0 || by["live tcp"] > 0 {
			t.Errorf("moved: %v, failed: %v", by, failed)
		}
		r.killEngine("r1")
		r.startEngine("r1")
		load.after(6)
		load.stop()
		load.report()
		r.tally()
	})
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if n := live(); n != before {
		t.Errorf("%d handles of the driver are alive, %d were", n, before)
	}
}
