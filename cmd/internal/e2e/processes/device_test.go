package processes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestDeviceFaults runs a part of the fault tests over pools in GPU memory; the slow tests run all
// of them (liveOnGPU). Without a fault all requests migrate by transport cuda; with a fault every
// text is still right.
func TestDeviceFaults(t *testing.T) {
	t.Parallel()
	h := newHop(t, liveOnGPU, setup{})
	for _, r := range h.replicas { // this takes a moment, in which TCP carries them
		r.migrator.WaitForLog("transport changed.*transport=shm")
	}
	h.requireMigrations("r1 to r2, live by cuda", "r2 to r1, live by cuda")
	for i, s := range map[int]step{0: liveSteps[2], 1: liveSteps[3]} { // the source's engine at round, the target's at pulled
		h.injectFault(s, killed(victims[i]))
	}
	harness.Tally(h.T, h.migrations())
}

// requireMigrations migrates streams from the source to the target, back, and so on, until
// requests have migrated in all the given ways, and fails if one has migrated in another way. On
// a busy machine a replica may be taken for gone for a moment; requests then also migrate by
// re-prompting.
func (h *hop) requireMigrations(want ...string) {
	h.T.Helper()
	var by map[string]int
	missing := func(way string) bool { return by[way] == 0 }
	for turn := 0; turn < 10 && slices.ContainsFunc(want, missing); turn++ {
		h.injectFault(anyMigration, fault{name: "no fault"})
		by = map[string]int{}
		for _, m := range h.migrations() {
			if front := h.front.ID; m.State == "done" && string(m.From) != front && string(m.To) != front {
				by[fmt.Sprintf("%s to %s, %s by %s", m.From, m.To, m.Method, m.Transport)]++
			}
		}
	}
	missed := func(r *replica) bool { return strings.Contains(r.migrator.Log.String(), "peer gone") }
	if slices.ContainsFunc(want, missing) || len(by) != len(want) && !slices.ContainsFunc(h.replicas, missed) {
		h.T.Errorf("migrations: %v, want only %q", by, want)
	}
}

// anyMigration is a step that every migration has.
var anyMigration = step{name: "committed", kind: move.Committed, to: toSource}

// TestDeviceDown makes a GPU fail during a migration and stay failed: no request migrates to its
// replica any more, which reports why, and the requests continue where they are.
func TestDeviceDown(t *testing.T) {
	t.Parallel()
	h := newHop(t, liveOnGPU, setup{faults: map[string]string{"r2": "cuMemImportFromShareableHandle:2:719,cuDevicePrimaryCtxRetain:-2:46"}})
	running := h.begin(forever)
	h.leaveSource()
	h.target.migrator.WaitForLog("stopped receiving KV: the engine's memory is unusable.*gpu 0 is down")
	h.AwaitStatus("r2 reports that its GPU is down", func(s control.Status) bool {
		list := harness.Find(s, "r2").Transports
		return len(list) > 0 && !slices.ContainsFunc(list, func(tr control.Transport) bool {
			return tr.Peer == "" && tr.Name != "shm" && !strings.Contains(tr.Reason, "gpu 0 is down: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)")
		})
	})
	h.Order("undrain", h.source.ID)
	h.WaitForGrowth(running)
	h.RequireTexts(running)
	h.awaitEmpty(h.replicas...)

	h.Order("drain", h.target.ID)
	running = h.begin(forever)
	began := time.Now()
	h.leaveSource()
	h.WaitForEvents(running, 200)
	enough := time.Now()
	h.AwaitStatus("the source has reported since", func(s control.Status) bool {
		age := harness.Find(s, h.source.ID).ReportAge
		return age != nil && *age < time.Since(enough).Seconds()
	})
	for _, m := range h.migrations() {
		if m.To == "r2" && m.Started.After(began) {
			t.Errorf("a request migrates to a replica that cannot receive it: %+v", m)
		}
	}
	h.RequireTexts(running)
	if out := h.target.migrator.Log.String(); strings.Count(out, "transport changed") > 50 {
		t.Errorf("its migrator does not come to rest:\n%s", out)
	}
}
