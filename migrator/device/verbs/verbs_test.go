package verbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

func open(t testing.TB) (*verbs.Library, *fake.Control) {
	t.Helper()
	path := fake.Verbs(t)
	c := fake.Open(t, path)
	l := testkit.Must(verbs.Open(path))
	if n := c.Live(""); n != 0 {
		t.Fatalf("%d handles are alive before the test", n)
	}
	return l, c
}

// TestShimUnderTheAddressSanitizer makes every call from C.
func TestShimUnderTheAddressSanitizer(t *testing.T) { fake.CheckShim(t, fake.Verbs(t)) }

// TestBareMachine opens the library of this machine, if there is one.
func TestBareMachine(t *testing.T) {
	l, err := verbs.Open("")
	if err == nil {
		_, err = l.Devices()
	}
	if err != nil && !errors.Is(err, device.ErrNoLibrary) && !errors.Is(err, device.ErrNoCgo) {
		t.Error(err)
	}
}

// TestShimIsTheSame compares the structures of Go and C. That the calls have the same numbers, TestEveryCallFails shows.
func TestShimIsTheSame(t *testing.T) {
	open(t)
	if ours, theirs := verbs.Sizes(); ours != theirs {
		t.Errorf("sizes are %v in Go and %v in the shim", ours, theirs)
	}
}

func TestNoLibrary(t *testing.T) {
	_, err := verbs.Open(filepath.Join(t.TempDir(), "libibverbs.so.1"))
	if !errors.Is(err, device.ErrNoLibrary) && !errors.Is(err, device.ErrNoCgo) {
		t.Errorf("%v", err)
	}
	_, err = verbs.Open("libc.so.6")
	var missing *device.SymbolError
	if !errors.As(err, &missing) && !errors.Is(err, device.ErrNoCgo) {
		t.Errorf("Open of another library: %v", err)
	}
}

// TestSymbolIsMissing opens libraries that lack one function each.
func TestSymbolIsMissing(t *testing.T) {
	open(t)
	for i, name := range verbs.Calls {
		if verbs.Inline(i) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			path := fake.Copy(t, fake.Verbs(t), name)
			l, err := verbs.Open(path)
			var missing *device.SymbolError
			switch {
			case verbs.Optional(i):
				if err != nil {
					t.Errorf("Open without an optional symbol: %v", err)
				} else if l.Has(i) {
					t.Error("Has reports a missing symbol")
				}
			case !errors.As(err, &missing) || !strings.HasPrefix(missing.Symbol, name) || missing.Library != path:
				t.Errorf("%v", err)
			}
		})
	}
}

func TestRequests(t *testing.T) {
	l, c := open(t)
	first := &harness{lib: l}
	testkit.NoError(t, errors.Join(first.setUp(""), first.close()))
	files := testkit.OpenFiles(t) // including those of Go's poller
	r := &harness{lib: l}
	if err := errors.Join(r.setUp(""), r.work(), r.failRequest()); err != nil {
		t.Error(err)
	}
	if r.gid.Index != 2 || !r.gid.RoutedIP || !r.port.Active || r.device.Limits.Reads != 16 {
		t.Errorf("%+v %+v %+v", r.gid, r.port, r.device.Limits)
	}
	if n := l.OpenResources(); n != (verbs.Resources{Devices: 1, Regions: 3, Queues: 2, Pairs: 2}) {
		t.Errorf("%+v", n)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if err := r.pairs[0].Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if n := c.Live(""); n != 0 || l.OpenResources() != (verbs.Resources{}) || testkit.OpenFiles(t) > files {
		t.Errorf("%d handles and %d files are left of %d, %+v", n, testkit.OpenFiles(t), files, l.OpenResources())
	}
}

func TestEvents(t *testing.T) {
	l, c := open(t)
	d := testkit.Must(l.OpenDevice("fake0"))
	defer d.Close()
	c.Set("fake_event", 8)
	if e, err := d.Event(); err != nil || !e.Fatal || e.Text != "local catastrophic error" {
		t.Errorf("%+v, %v", e, err)
	}
	d.Interrupt()
	if _, err := d.Event(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("interrupted: %v", err)
	}
	if _, err := l.OpenDevice("mlx5_9"); err == nil || !strings.Contains(err.Error(), "fake0") {
		t.Errorf("a device that is not there: %v", err)
	}
}

// TestWaits lets a queue wait for a request that takes its time, and for one that
// does not come.
func TestWaits(t *testing.T) {
	l, c := open(t)
	r := newHarness(t, l)
	c.Set("fake_hold", 1)
	w := []verbs.Work{{ID: 7, Local: r.regions[0].Base, LocalKey: r.regions[0].LocalKey, Remote: r.regions[1].Base, RemoteKey: r.regions[1].RemoteKey, Length: 10, Flags: verbs.Signaled}}
	testkit.Must(r.pairs[0].Post(w))
	r.queues[0].SetDeadline(time.Now().Add(time.Millisecond))
	if _, err := r.queues[0].Wait(r.completions); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a queue with nothing in it: %v", err)
	}
	done := make(chan error)
	go func() { done <- r.wait(7) }()
	c.Set("fake_hold", 0)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
}

// TestEveryCallFails makes each call of a harness's life fail once. The error names the
// call and the errno, and all that was made before can be closed.
func TestEveryCallFails(t *testing.T) {
	l, c := open(t)
	defer c.Set("fake_forget", 0)
	for i, name := range verbs.Calls {
		before := c.Calls(name)
		whole := func() error {
			c.Set("fake_hold", 2) // so that as many calls are made each time
			r := &harness{lib: l}
			err := r.setUp("")
			if err == nil {
				err = r.work()
			}
			if err == nil {
				err = r.failRequest()
			}
			if err == nil {
				c.Set("fake_event", 3)
				_, err = r.device.Event()
			}
			return errors.Join(err, r.close())
		}
		testkit.NoError(t, whole())
		times := c.Calls(name) - before
		if times == 0 && !quiet[name] {
			t.Errorf("%s is never called", name)
		}
		for nth := 1; nth <= times; nth++ {
			already := c.Calls(name)
			c.Fail(name, nth, int(syscall.ENOSPC))
			err := whole()
			c.Clear()
			if c.Calls(name)-already < nth {
				continue // a wait that did not have to wait
			}
			var e *verbs.Error
			switch {
			case quiet[name]:
				if err != nil {
					t.Errorf("%s, call %d: %v", name, nth, err)
				}
			case !errors.As(err, &e) || !errors.Is(err, syscall.ENOSPC) || e.Call != name || !strings.Contains(err.Error(), name+": no space left on device (28)"):
				t.Errorf("%s, call %d: %v", name, nth, err)
			}
			if strings.Contains(name, "close") || strings.Contains(name, "de") && !strings.Contains(name, "device") {
				continue // what cannot be closed stays
			}
			if n := l.OpenResources().Devices; n != 0 {
				t.Errorf("%s (%d), call %d: %d devices are left", name, i, nth, n)
			}
		}
	}
}

// quiet are the calls that cannot fail, that only make an error more readable, or
// that are made where another one is missing.
var quiet = map[string]bool{
	"ibv_free_device_list": true, "ibv_ack_cq_events": true, "ibv_ack_async_event": true, "ibv_wc_status_str": true, "ibv_event_type_str": true,
	"ibv_query_gid": true,
}

// TestRequestsFail gives requests every status that there is.
func TestRequestsFail(t *testing.T) {
	l, c := open(t)
	for status := 1; status < 24; status++ {
		r := newHarness(t, l)
		c.Fail("request", 1, status)
		err := r.transfer(100)
		var failed *verbs.CompletionError
		if !errors.As(err, &failed) || failed.Status != uint32(status) || failed.Text == "" {
			t.Errorf("status %d: %v", status, err)
		}
		if err := r.transfer(100); !errors.As(err, &failed) || failed.Status != verbs.Flushed {
			t.Errorf("after status %d: %v", status, err)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestLocked has a process without the right to lock memory register some.
func TestLocked(t *testing.T) {
	l, c := open(t)
	d := testkit.Must(l.OpenDevice("fake0"))
	defer d.Close()
	c.Fail("ibv_reg_mr", 1, int(syscall.ENOMEM))
	if _, err := d.Register(4096, 4096, verbs.LocalWrite); err == nil || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v", err)
	}
	if err := (&verbs.MemlockError{Need: 2, Limit: 1}).Error(); !strings.Contains(err, "LimitMEMLOCK") {
		t.Error(err)
	}
}
