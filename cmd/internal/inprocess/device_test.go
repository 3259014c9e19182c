package inprocess

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/gpuset"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/xds/control"
)

// newFakeGPUs returns the GPUs of a fake driver, and a function that counts its open handles.
func newFakeGPUs(t *testing.T) (*gpuset.Set, func() int) {
	t.Helper()
	library := fake.CUDA(t)
	g := gpuset.New(gpuset.Config{CUDA: library})
	if _, err := g.Open(0); errors.Is(err, device.ErrNoCgo) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	return g, func() int { return fake.Open(t, library).Live("") }
}

// startStreamsOn starts streams until one of them runs on the given engine.
func (r *fleetHarness) startStreamsOn(id string) (streams []*live) {
	r.t.Helper()
	for n := 0; ; n++ {
		if slices.ContainsFunc(r.fronts[id].LocalLegs(), func(q frontend.LocalLeg) bool { return q.Request.MaxOutput == forever }) {
			return streams
		}
		streams = append(streams, r.stream(prompt(120+n, forever)))
	}
}

// TestDeviceSick marks a GPU as suspect: its replica receives no KV, the control plane learns why,
// and its running requests continue. The test does not run in parallel, because it counts handles.
func TestDeviceSick(t *testing.T) {
	_, live := newFakeGPUs(t)
	before := live()
	library := fake.NVML(t)
	g := gpuset.New(gpuset.Config{CUDA: fake.CUDA(t), NVML: library})
	t.Run("fleet", func(t *testing.T) {
		one := 1
		r := newCheckedFleet(t, harnessConfig{replicas: 3, gpus: g, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
			f.Replicas[2].GPU = &one
		}})
		load := newTraffic(r, 6, 100, 300, 600)
		load.waitForRequests(6)
		nvml := fake.Open(t, library)
		r.waitFor("the GPUs are watched", func() bool { return nvml.Live("event sets") == 1 })
		nvml.Set("fake_xid", 1079)
		r.waitForStatus("r2 says why it takes no KV", func(s control.Status) bool {
			for _, m := range s.Models {
				for _, st := range m.Stages {
					for _, n := range st.Replicas {
						if n.ID == "r2" && len(n.Transports) > 0 {
							for _, tr := range n.Transports {
								if tr.Peer == "" && tr.Name != "shm" && !strings.Contains(tr.Reason, "gpu 1 is down: Xid 79: it has fallen off the bus") {
									return false
								}
							}
							return true
						}
					}
				}
			}
			return false
		})
		started := time.Now()
		// If the host is busy, the load's answers end before they migrate.
		streams := r.startStreamsOn("r0")
		for _, id := range []string{"r0", "r1"} { // each can sell to the other and to r2
			r.drainAndWait(id)
			r.undrainAndWait(id)
		}
		load.waitForRequests(6)
		load.stop()
		load.report()
		r.waitForGrowth(streams)
		load.requireTexts(streams)
		done, _ := r.moves()
		for _, m := range done {
			if m.To == "r2" && m.StartedAt.After(started) {
				t.Errorf("a request moves to a replica whose GPU is sick: %+v", m)
			}
		}
		if len(done) == 0 {
			t.Error("nothing has moved")
		}
		r.tally()
	})
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if n := live(); n != before {
		t.Errorf("%d handles of the driver are alive, %d were", n, before)
	}
}

// TestDevice migrates requests between engines that keep their KV in GPU memory, kills an engine
// and a front end meanwhile, and checks that nothing is left on the GPU.
func TestDevice(t *testing.T) {
	t.Parallel()
	g, live := newFakeGPUs(t)
	before := live()
	t.Run("fleet", func(t *testing.T) {
		r := newCheckedFleet(t, harnessConfig{replicas: 3, gpus: g, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
		}})
		load := newTraffic(r, 6, 100, 300, 600)
		load.waitForRequests(6)
		streams := r.startStreamsOn("r0")
		for _, id := range []string{"r0", "r1", "r2"} {
			r.drainAndWait(id)
			r.undrainAndWait(id)
		}
		r.waitForGrowth(streams)
		load.requireTexts(streams)
		done, failed := r.moves()
		by := map[string]int{}
		for _, m := range done {
			by[m.Mode+" "+m.Transport]++
		}
		if by["live cuda"] == 0 || by["live shm"] > 0 || by["live tcp"] > 0 {
			t.Errorf("moved: %v, failed: %v", by, failed)
		}
		r.killEngine("r1")
		r.startEngine("r1")
		load.waitForRequests(6)
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
