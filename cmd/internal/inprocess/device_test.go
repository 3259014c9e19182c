package inprocess

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/gpuset"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/xds/control"
)

// startStreamsOn starts streams until one of them runs on the given engine.
func (r *fleetHarness) startStreamsOn(id string) (streams []*harness.Stream) {
	r.T.Helper()
	for n := 0; ; n++ {
		if slices.ContainsFunc(r.fronts[id].LocalLegs(), func(q frontend.LocalLeg) bool { return q.Request.MaxOutput == forever }) {
			return streams
		}
		streams = append(streams, r.Stream(prompt(120+n, forever)))
	}
}

// TestDevice migrates requests between engines that keep their KV in GPU memory, kills an engine meanwhile, and marks
// one of the two GPUs as failed: its replica receives no more KV, the control plane learns why, and running requests
// continue. In the end nothing is left on the GPUs.
func TestDevice(t *testing.T) {
	t.Parallel()
	cuda, libnvml := fake.CUDA(t), fake.NVML(t)
	g := gpuset.New(gpuset.Config{CUDA: cuda, NVML: libnvml})
	_, err := g.Open(0)
	fake.RequireOpened(t, err)
	driver, nvml := fake.Open(t, cuda), fake.Open(t, libnvml)
	before := driver.Live("")
	t.Run("fleet", func(t *testing.T) {
		one := 1
		r := newCheckedFleet(t, harnessConfig{replicas: 3, gpus: g, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
			f.Replicas[2].GPU = &one
		}})
		load := r.newLoad(3, 60, 300, 600)
		load.WaitForRequests(6)
		// If the host is busy, the load's answers end before they migrate.
		streams := r.startStreamsOn("r0")
		for _, id := range []string{"r0", "r1", "r2"} {
			r.drainAndUndrain(id)
		}
		done, failed := r.migrations()
		by := map[string]int{}
		for _, m := range done {
			by[m.Mode+" "+m.Transport]++
		}
		if by["live cuda"] == 0 || by["live shm"] > 0 || by["live tcp"] > 0 {
			t.Errorf("migrated: %v, failed: %v", by, failed)
		}
		r.killEngine("r1")
		r.startEngine("r1")
		load.WaitForRequests(6)

		r.WaitFor("the GPUs are watched", func() bool { return nvml.Live("event sets") == 1 })
		nvml.Set("fake_xid", 1079)
		r.waitForStatus("r2 reports why it receives no KV", func(s control.Status) bool {
			list := harness.Find(s, "r2").Transports
			return len(list) > 0 && !slices.ContainsFunc(list, func(tr control.Transport) bool {
				return tr.Peer == "" && tr.Name != "shm" && !strings.Contains(tr.Reason, "gpu 1 is down: Xid 79: it has fallen off the bus")
			})
		})
		failedAt := time.Now()
		streams = append(streams, r.startStreamsOn("r0")...)
		for _, id := range []string{"r0", "r1"} { // each may migrate requests to the other and to r2
			r.drainAndUndrain(id)
		}
		load.WaitForRequests(6)
		load.Stop()
		load.Report()
		r.WaitForGrowth(streams)
		r.RequireTexts(streams)
		after := 0
		done, _ = r.migrations()
		for _, m := range done {
			if !m.StartedAt.After(failedAt) {
				continue
			}
			if after++; m.To == "r2" {
				t.Errorf("a request migrates to a replica whose GPU has failed: %+v", m)
			}
		}
		if after == 0 {
			t.Error("no request has migrated since the GPU failed")
		}
		r.tally()
	})
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	if n := driver.Live(""); n != before {
		t.Errorf("%d handles of the driver are open, %d were", n, before)
	}
}
