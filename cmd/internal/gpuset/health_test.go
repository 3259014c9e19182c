package gpuset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// log is what an operator reads, line by line.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// watched is GPUs 0 and 1 whose health is watched until the test ends.
type watched struct {
	*Set
	t    *testing.T
	nvml *fake.Control
	log  *log
	gpu  [2]*cuda.GPU
}

func watch(t *testing.T) *watched {
	t.Helper()
	w := &watched{t: t, log: &log{}}
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
			t.Errorf("%d handles of NVML are alive", n)
		}
	})
	for i := range w.gpu {
		var err error
		if w.gpu[i], err = w.Open(i); errors.Is(err, device.ErrNoCgo) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// until waits until something holds.
func (w *watched) until(what string, holds func() bool) {
	w.t.Helper()
	for limit := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			w.t.Fatalf("%s: it does not come to it; log:\n%s", what, w.log)
		}
	}
}

func (w *watched) down(gpu int, text string) bool {
	err := w.gpu[gpu].Err()
	return (err == nil) == (text == "") && (err == nil || strings.Contains(err.Error(), text))
}

// TestHealth condemns the GPU that is sick, and no other, and for as long as it is.
func TestHealth(t *testing.T) {
	w := watch(t)
	w.until("NVML is open", func() bool { return w.nvml.Live("event sets") == 1 })
	w.nvml.Set("fake_xid", 1013) // GPU 1
	w.until("a program's fault is told", func() bool { return strings.Contains(w.log.String(), "Xid 13: a fault in a program") })
	if !w.down(0, "") || !w.down(1, "") {
		t.Errorf("a program's fault: %v, %v", w.gpu[0].Err(), w.gpu[1].Err())
	}
	w.nvml.Set("fake_sick", 0)
	w.until("GPU 0 has memory errors", func() bool { return w.down(0, "gpu 0 is down: 7 uncorrected memory errors") })
	w.until("its state is told", func() bool { return strings.Contains(w.log.String(), "slowed: heat") })
	w.nvml.Set("fake_sick", -1)
	w.until("it is well again", func() bool { return w.down(0, "") })
	w.nvml.Set("fake_lost", 0)
	w.until("GPU 0 is lost", func() bool { return w.down(0, "fallen off the bus") })
	w.nvml.Set("fake_lost", -1)
	w.until("it is back", func() bool { return w.down(0, "") })
	if !w.down(1, "") {
		t.Errorf("GPU 1 is none of these: %v", w.gpu[1].Err())
	}
	w.nvml.Set("fake_xid", 1079)
	w.until("GPU 1 has fallen off the bus", func() bool { return w.down(1, "gpu 1 is down: Xid 79: it has fallen off the bus") })
	if !w.down(0, "") {
		t.Errorf("GPU 0 is not GPU 1: %v", w.gpu[0].Err())
	}
	// Of one that is opened later, what is known already is known of it.
	w.mu.Lock()
	delete(w.gpus, 1)
	w.mu.Unlock()
	again, err := w.Open(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Err(); err == nil {
		t.Error("a sick GPU is trusted when it is opened")
	}
	for _, line := range []string{"a GPU is not trusted with KV any more", "a GPU is trusted with KV again", "of a program"} {
		if !strings.Contains(w.log.String(), line) {
			t.Errorf("nobody says %q", line)
		}
	}
}

// TestHealthGoesOn makes each call of NVML fail once, and again: the watch goes on, and
// sees what comes.
func TestHealthGoesOn(t *testing.T) {
	for _, call := range []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID",
		"nvmlDeviceGetTotalEccErrors", "nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree"} {
		t.Run(call, func(t *testing.T) {
			library := fake.NVML(t)
			before := fake.Open(t, library)
			for nth := range 2 {
				before.Fail(call, nth+1, 999)
			}
			w := watch(t)
			made, waits := w.nvml.Calls(call), -1
			w.until("the call is made again", func() bool {
				// What has all of it made again; once for each call: the fake has room for 64.
				if n := w.nvml.Calls("nvmlEventSetWait_v2"); n != waits {
					before.Fail("nvmlEventSetWait_v2", 1, 999)
					waits = n
				}
				return w.nvml.Calls(call) >= made+3
			})
			before.Clear()
			w.until("NVML is open", func() bool { return w.nvml.Live("event sets") > 0 })
			for i := range 2 {
				w.until(fmt.Sprintf("GPU %d is well", i), func() bool { return w.down(i, "") })
			}
			w.until("an Xid is seen", func() bool { // one may come when nobody waits
				w.nvml.Set("fake_xid", 1095)
				return w.down(1, "Xid 95: an uncontained memory error")
			})
		})
	}
}

// TestNoNVML has nobody to ask, and nobody who asks.
func TestNoNVML(t *testing.T) {
	for _, open := range []bool{false, true} {
		said := &log{}
		g := New(Config{CUDA: fake.CUDA(t), NVML: "libnone.so.1", Logger: slog.New(slog.NewTextHandler(said, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		if open {
			if _, err := g.Open(0); errors.Is(err, device.ErrNoCgo) {
				cancel()
				<-done
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			for limit := time.Now().Add(time.Minute); !strings.Contains(said.String(), "nobody watches"); time.Sleep(time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatal("nobody says that nobody watches")
				}
			}
		}
		cancel()
		if err := errors.Join(<-done, g.Close()); err != nil {
			t.Error(err)
		}
	}
}
