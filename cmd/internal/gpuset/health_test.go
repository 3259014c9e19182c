package gpuset

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// watchedSet is a Set with GPUs 0 and 1 whose health is watched until the test ends.
type watchedSet struct {
	*Set
	t    *testing.T
	nvml *fake.Control
	log  *testkit.Log
	gpu  [2]*cuda.GPU
}

func startWatch(t *testing.T) *watchedSet {
	t.Helper()
	w := &watchedSet{t: t, log: &testkit.Log{}}
	library := fake.NVML(t)
	w.nvml = fake.Open(t, library)
	w.Set = New(Config{CUDA: fake.CUDA(t), NVML: library, Logger: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	w.interval = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if n := w.nvml.Live(""); n != 0 {
			t.Errorf("%d handles of NVML are open", n)
		}
	})
	for i := range w.gpu {
		var err error
		w.gpu[i], err = w.Open(i)
		fake.RequireOpened(t, err)
	}
	return w
}

// waitFor waits until holds returns true.
func (w *watchedSet) waitFor(what string, holds func() bool) {
	w.t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			w.t.Fatalf("timed out: %s; log:\n%s", what, w.log)
		}
	}
}

func (w *watchedSet) down(gpu int, text string) bool {
	err := w.gpu[gpu].Err()
	return (err == nil) == (text == "") && (err == nil || strings.Contains(err.Error(), text))
}

// TestHealth checks that exactly the GPU with a problem is unhealthy, for as long as the problem
// lasts.
func TestHealth(t *testing.T) {
	w := startWatch(t)
	w.waitFor("NVML is open", func() bool { return w.nvml.Live("event sets") == 1 })
	w.nvml.Set("fake_xid", 1013) // GPU 1
	w.waitFor("a program's fault is logged", func() bool { return strings.Contains(w.log.String(), "Xid 13: a fault in a program") })
	if !w.down(0, "") || !w.down(1, "") {
		t.Errorf("a program's fault: %v, %v", w.gpu[0].Err(), w.gpu[1].Err())
	}
	w.nvml.Set("fake_sick", 0)
	w.waitFor("GPU 0 has memory errors", func() bool { return w.down(0, "gpu 0 is down: 7 uncorrected memory errors") })
	w.waitFor("its warning is logged", func() bool { return strings.Contains(w.log.String(), "throttled: heat") })
	w.nvml.Set("fake_sick", -1)
	w.waitFor("GPU 0 is healthy again", func() bool { return w.down(0, "") })
	w.nvml.Set("fake_lost", 0)
	w.waitFor("GPU 0 is lost", func() bool { return w.down(0, "fallen off the bus") })
	w.nvml.Set("fake_lost", -1)
	w.waitFor("GPU 0 is back", func() bool { return w.down(0, "") })
	if !w.down(1, "") {
		t.Errorf("GPU 1 is unhealthy: %v", w.gpu[1].Err())
	}
	w.nvml.Set("fake_xid", 1079)
	w.waitFor("GPU 1 has fallen off the bus", func() bool { return w.down(1, "gpu 1 is down: Xid 79: it has fallen off the bus") })
	if !w.down(0, "") {
		t.Errorf("GPU 0 is unhealthy: %v", w.gpu[0].Err())
	}
	// A GPU that is opened later gets the health that is already known.
	w.mu.Lock()
	delete(w.gpus, 1)
	w.mu.Unlock()
	again, err := w.Open(1)
	testkit.NoError(t, err)
	if err := again.Err(); err == nil {
		t.Error("an unhealthy GPU is healthy when it is opened")
	}
	for _, line := range []string{"GPU became unhealthy", "GPU became healthy again", "application_error=true"} {
		if !strings.Contains(w.log.String(), line) {
			t.Errorf("the log does not have %q", line)
		}
	}
}

// TestHealthSurvivesFailures makes each call of NVML fail twice: the watch continues, and detects
// later events.
func TestHealthSurvivesFailures(t *testing.T) {
	for _, call := range []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID",
		"nvmlDeviceGetTotalEccErrors", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree"} {
		t.Run(call, func(t *testing.T) {
			library := fake.NVML(t)
			before := fake.Open(t, library)
			for nth := range 2 {
				before.Fail(call, nth+1, 999)
			}
			w := startWatch(t)
			made, waits := w.nvml.Calls(call), -1
			w.waitFor("the call is made again", func() bool {
				// After a failing wait, the watch starts again from the beginning. This runs once
				// per call, since the fake has room for 64 failures.
				if n := w.nvml.Calls("nvmlEventSetWait_v2"); n != waits {
					before.Fail("nvmlEventSetWait_v2", 1, 999)
					waits = n
				}
				return w.nvml.Calls(call) >= made+3
			})
			before.Clear()
			w.waitFor("NVML is open", func() bool { return w.nvml.Live("event sets") > 0 })
			for i := range 2 {
				w.waitFor(fmt.Sprintf("GPU %d is healthy", i), func() bool { return w.down(i, "") })
			}
			w.waitFor("an Xid is seen", func() bool { // an Xid may occur while no wait is in progress
				w.nvml.Set("fake_xid", 1095)
				return w.down(1, "Xid 95: an uncontained memory error")
			})
		})
	}
}

// TestNoNVML runs without NVML, with and without an open GPU.
func TestNoNVML(t *testing.T) {
	for _, open := range []bool{false, true} {
		said := &testkit.Log{}
		g := New(Config{CUDA: fake.CUDA(t), NVML: "libnone.so.1", Logger: said.Logger()})
		stop := testkit.Run(t, g.Run)
		if open {
			_, err := g.Open(0)
			fake.RequireOpened(t, err)
			testkit.WaitFor(t, "the log that GPU health is not watched", func() bool {
				return strings.Contains(said.String(), "GPU health is not watched")
			})
		}
		stop()
		testkit.NoError(t, g.Close())
	}
}
