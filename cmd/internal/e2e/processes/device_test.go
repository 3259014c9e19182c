package processes

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/loopback"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestDeviceFaults runs a part of the fault tests over pools in GPU memory; the slow tests run all
// of them (liveOnGPU). Without a fault all requests migrate by transport cuda; with a fault every
// text is still right.
func TestDeviceFaults(t *testing.T) {
	t.Parallel()
	h := newHop(t, liveOnGPU, nil)
	for _, r := range h.replicas { // this takes a moment, in which TCP carries them
		r.migrator.await("transport changed.*transport=shm")
	}
	h.injectFault(step{name: "committed", kind: transfer.Committed, to: toSource}, fault{name: "no fault", strike: func(*hop, crossing) bool { return true }})
	by := map[string]int{}
	for _, m := range h.migrations() {
		if string(m.From) != h.target.ID { // source and target have swapped roles
			continue
		}
		if m.Reason == transfer.RequestEnded.String() { // the host was too busy to migrate it in time
			continue
		}
		by[m.Method+" "+m.Transport+" "+m.State]++
	}
	if len(by) != 1 || by["live cuda done"] == 0 {
		t.Errorf("moves without a fault: %v", by)
	}
	v := victims()
	for i, s := range map[int]step{0: liveSteps[2], 1: liveSteps[3]} { // the source's engine at round, the target's at pulled
		h.injectFault(s, killed(v[i]))
	}
	h.tally()
}

// TestDeviceErrors makes the GPUs of both migrators fail repeatedly during migrations, each time
// permanently for their contexts: every text is right, a failed migration ends no request, and
// migrations by transport cuda continue.
func TestDeviceErrors(t *testing.T) {
	t.Parallel()
	var rules []string
	for _, r := range []struct {
		call string
		nth  []int
		code int
	}{
		{"cuLaunchKernel", []int{40, 70, 100}, 700}, {"cuEventRecord", []int{50, 120}, 214}, {"cuMemcpyHtoDAsync_v2", []int{60, 140}, 999},
		{"cuMemImportFromShareableHandle", []int{5, 9}, 719}, {"cuStreamCreateWithPriority", []int{5}, 700},
	} {
		for _, n := range r.nth {
			rules = append(rules, fmt.Sprintf("%s:%d:%d", r.call, n, r.code))
		}
	}
	faults := strings.Join(rules, ",")
	h := newHopOf(t, liveOnGPU, setup{faults: map[string]string{"r1": faults, "r2": faults}})
	failed := regexp.MustCompile(`(cuLaunchKernel|cuEventRecord|cuMemcpyHtoDAsync_v2|cuMemImportFromShareableHandle|cuStreamCreateWithPriority): CUDA_ERROR_\w+ \(\d+\)`)
	said := func() (n int) {
		for _, r := range h.replicas {
			n += len(failed.FindAllString(r.migrator.out.String(), -1))
		}
		return n
	}
	by := map[string]int{}
	for turn := 0; turn < 20 && (said() < 4 || by["live cuda done"] == 0); turn++ {
		h.run(fmt.Sprint("GPUs that fail, ", turn), step{kind: transfer.Committed, to: toSource}, fault{strike: func(*hop, crossing) bool { return true }})
		clear(by)
		for _, m := range h.migrations() {
			by[m.Method+" "+m.Transport+" "+m.State]++
		}
	}
	if said() < 4 || by["live cuda done"] == 0 {
		t.Errorf("the GPUs have failed %d times, moves: %v", said(), by)
	}
	t.Logf("moves: %v", by)
	h.tally()
}

// TestDeviceDown makes a GPU fail during a migration and stay failed: no request migrates to its
// replica any more, which reports why, and the requests end where they are.
func TestDeviceDown(t *testing.T) {
	t.Parallel()
	h := newHopOf(t, liveOnGPU, setup{faults: map[string]string{"r2": "cuMemImportFromShareableHandle:2:719,cuDevicePrimaryCtxRetain:-2:46"}})
	any := step{kind: transfer.Committed, to: toSource}
	down := regexp.MustCompile("stopped receiving KV: the engine's memory is unusable.*gpu 0 is down")
	// Streams may end before they have migrated.
	for turn := 0; turn < 2*attempts && !down.MatchString(h.replicas[2].migrator.out.String()); turn++ {
		h.run(fmt.Sprint("a GPU fails for good, ", turn), any, fault{strike: func(*hop, crossing) bool { return true }})
	}
	h.awaitStatus("r2 says that its GPU is down", func(s control.Status) bool {
		n := find(s, "r2")
		if n == nil || len(n.Transports) == 0 {
			return false
		}
		for _, tr := range n.Transports {
			if tr.Peer == "" && tr.Name != "shm" && !strings.Contains(tr.Reason, "gpu 0 is down: cuDevicePrimaryCtxRetain: CUDA_ERROR_DEVICE_UNAVAILABLE (46)") {
				return false
			}
		}
		return true
	})
	h.replicas[2].migrator.await(down.String())
	to := func() (n int) {
		for _, m := range h.migrations() {
			if m.To == "r2" {
				n++
			}
		}
		return n
	}
	before := to()
	// Source and target have swapped roles; swap them back.
	h.source, h.target = h.replicas[1], h.replicas[2]
	h.order("undrain", h.source.ID)
	h.order("drain", h.target.ID)
	h.run("a GPU that is down", any, fault{strike: func(*hop, crossing) bool { return true }})
	if n := to() - before; n > 0 {
		t.Errorf("%d requests were sold to a replica that cannot take them", n)
	}
	if out := h.replicas[2].migrator.out.String(); strings.Count(out, "transport changed") > 50 {
		t.Errorf("its migrator does not come to rest:\n%s", out)
	}
}

// TestDeviceMixed migrates requests between engines of one model, of which one keeps its KV on a
// GPU and the other in host memory: live, through the host.
func TestDeviceMixed(t *testing.T) {
	t.Parallel()
	h := newHopOf(t, liveOnGPU, setup{onHost: "r2"})
	by := map[string]int{}
	for turn := 0; turn < 2*attempts && len(by) < 2; turn++ { // to r2, and back; streams may end before they have migrated
		h.run(fmt.Sprint("turn ", turn), step{kind: transfer.Committed, to: toSource}, fault{strike: func(*hop, crossing) bool { return true }})
		clear(by)
		for _, m := range h.migrations() {
			if m.State == "done" && m.From != "r0" && m.To != "r0" {
				by[fmt.Sprintf("%s to %s, %s by %s", m.From, m.To, m.Method, m.Transport)]++
			}
		}
	}
	if len(by) != 2 || by["r1 to r2, live by tcp"] == 0 || by["r2 to r1, live by tcp"] == 0 {
		t.Errorf("moves: %v", by)
	}
	h.tally()
}

// TestDeviceLacks checks that the error names what is missing on a host without a driver.
func TestDeviceLacks(t *testing.T) {
	t.Parallel()
	a := loopback.Addresses(t, 1)[0]
	p := startWith(t, []string{"CASCADE_TEST_LIBCUDA=libnone.so.1"}, "engine", "--device", config.MigrationOff, "--listen", a)
	<-p.gone
	q := startWith(t, []string{"CASCADE_TEST_LIBCUDA=libnone.so.1"}, "engine", "--device", "cuda", "--listen", a)
	<-q.gone
	if p.code != 1 || q.code != 1 {
		t.Errorf("codes %d and %d", p.code, q.code)
	}
	p.await(`device "off": must be "host" or "cuda"`)
	q.await("install an NVIDIA driver|CGO_ENABLED=1")
}
