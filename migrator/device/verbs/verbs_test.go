package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// patience bounds waits for what should end by itself.
const patience = 30 * time.Second

func open(t testing.TB) (*verbs.Library, *fake.Control) {
	t.Helper()
	path := fake.Verbs(t)
	c := fake.Open(t, path)
	l, err := verbs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
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

// TestShimIsTheSame compares the calls and the structures of Go and C.
func TestShimIsTheSame(t *testing.T) {
	open(t)
	for i, name := range verbs.Calls {
		if verbs.Symbol(i) != name {
			t.Errorf("call %d is %s in Go and %s in the shim", i, name, verbs.Symbol(i))
		}
	}
	if s := verbs.Symbol(len(verbs.Calls)); s != "" {
		t.Errorf("the shim has the extra call %s", s)
	}
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

// harness is two connected queue pairs with memory.
type harness struct {
	lib           *verbs.Library
	device        *verbs.Device
	queues        [2]*verbs.CompletionQueue
	pairs         [2]*verbs.QueuePair
	memory        [2][]byte
	regions       [2]*verbs.MemoryRegion
	keep          runtime.Pinner
	completions   []verbs.Completion
	port          verbs.Port
	gid           verbs.GID
	dmabuf        *os.File
	dmabufRegion  *verbs.MemoryRegion
	withoutDMABuf bool
}

const rigBytes = 1 << 16

// setUp makes everything, and returns the first error.
func (r *harness) setUp(name string) (err error) {
	r.completions = make([]verbs.Completion, 8)
	names, err := r.lib.Devices()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return errors.New("no device")
	}
	if name == "" {
		name = names[0]
	}
	if r.device, err = r.lib.OpenDevice(name); err != nil {
		return err
	}
	if r.port, err = r.device.Port(1); err != nil {
		return err
	}
	for i := range min(r.port.GIDs, 3) {
		g, err := r.device.GID(1, uint8(i))
		if errors.Is(err, syscall.ENODATA) {
			continue // an entry that is not set
		}
		if err != nil {
			return err
		}
		if g.Address != [16]byte{} {
			r.gid = g
		}
	}
	for i := range r.pairs {
		r.memory[i] = make([]byte, rigBytes)
		r.keep.Pin(&r.memory[i][0])
		access := verbs.LocalWrite | verbs.RemoteRead
		if r.regions[i], err = r.device.Register(uintptr(unsafe.Pointer(&r.memory[i][0])), rigBytes, access); err != nil {
			return err
		}
		if r.queues[i], err = r.device.NewCompletionQueue(64); err != nil {
			return err
		}
		if r.pairs[i], err = r.device.NewQueuePair(r.queues[i], 64, 2); err != nil {
			return err
		}
	}
	if !r.withoutDMABuf {
		if r.dmabuf, err = os.CreateTemp("", "dmabuf"); err != nil {
			return err
		}
		os.Remove(r.dmabuf.Name())
		if err := r.dmabuf.Truncate(rigBytes); err != nil {
			return err
		}
		if r.dmabufRegion, err = r.device.RegisterDMABuf(int(r.dmabuf.Fd()), 4096, 8192, 1<<40, verbs.LocalWrite|verbs.RemoteRead); err != nil {
			return err
		}
	}
	for i, p := range r.pairs {
		path := verbs.Path{
			GID: r.gid.Address, Pair: r.pairs[1-i].Number, PeerPSN: uint32(100 - i), LocalPSN: uint32(99 + i), LID: r.port.LID, Global: 1, GIDIndex: r.gid.Index,
			Port: 1, MTU: min(r.port.MTU, 3), Reads: 4, PeerReads: 4, Timeout: 11, Retries: 6, Hops: 64,
		}
		if err := p.Init(1, verbs.RemoteRead); err != nil {
			return err
		}
		if err := p.ReadyToReceive(&path); err != nil {
			return err
		}
		if err := p.ReadyToSend(&path); err != nil {
			return err
		}
	}
	return nil
}

// close closes everything, and returns the first error.
func (r *harness) close() (err error) {
	keep := func(e error) {
		if err == nil {
			err = e
		}
	}
	for i := range r.pairs {
		if r.pairs[i] != nil {
			keep(r.pairs[i].Close())
		}
		if r.queues[i] != nil {
			keep(r.queues[i].Close())
		}
		if r.regions[i] != nil {
			keep(r.regions[i].Close())
		}
	}
	if r.dmabufRegion != nil {
		keep(r.dmabufRegion.Close())
	}
	if r.dmabuf != nil {
		r.dmabuf.Close()
	}
	if r.device != nil {
		keep(r.device.Close())
	}
	r.keep.Unpin()
	return err
}

// transfer reads bytes of the peer by one request and waits for it.
func (r *harness) transfer(length uint32) error {
	w := []verbs.Work{{
		ID: 7, Local: r.regions[0].Base + 100, LocalKey: r.regions[0].LocalKey, Remote: r.regions[1].Base + 200, RemoteKey: r.regions[1].RemoteKey,
		Length: length, Flags: verbs.Signaled,
	}}
	if _, err := r.pairs[0].Post(w); err != nil {
		return err
	}
	return r.wait(7)
}

// wait waits for a completion, which must have this ID.
func (r *harness) wait(id uint64) error {
	r.queues[0].SetDeadline(time.Now().Add(patience))
	n, err := r.queues[0].Wait(r.completions)
	if err != nil {
		return err
	}
	if n != 1 || r.completions[0].ID != id {
		return fmt.Errorf("%d completions, the first of %d", n, r.completions[0].ID)
	}
	return r.queues[0].CompletionErr(r.completions[0])
}

// work reads once, and compares the bytes.
func (r *harness) work() error {
	for i, b := range r.memory {
		for k := range b {
			b[k] = byte(k*7 + i)
		}
	}
	if err := r.transfer(5000); err != nil {
		return err
	}
	if !bytes.Equal(r.memory[0][100:5100], r.memory[1][200:5200]) {
		return errors.New("a READ brought other bytes")
	}
	return nil
}

// failRequest makes a request that must not reach the peer, and returns its error: the
// pair cannot be used afterwards.
func (r *harness) failRequest() error {
	if err := r.pairs[1].MoveToError(); err != nil {
		return err
	}
	err := r.transfer(10)
	var failed *verbs.CompletionError
	if !errors.As(err, &failed) || failed.Status != verbs.RetryExceeded && failed.Status != verbs.RemoteAccess && failed.Status != 14 {
		return fmt.Errorf("a READ from a pair that has failed: %w", err)
	}
	return nil
}

func TestRequests(t *testing.T) {
	l, c := open(t)
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
	if n := c.Live(""); n != 0 || l.OpenResources() != (verbs.Resources{}) {
		t.Errorf("%d handles are left, %+v", n, l.OpenResources())
	}
}

func TestEvents(t *testing.T) {
	l, c := open(t)
	d, err := l.OpenDevice("fake0")
	if err != nil {
		t.Fatal(err)
	}
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
	r := &harness{lib: l}
	if err := r.setUp(""); err != nil {
		t.Fatal(err)
	}
	c.Set("fake_hold", 1)
	w := []verbs.Work{{ID: 7, Local: r.regions[0].Base, LocalKey: r.regions[0].LocalKey, Remote: r.regions[1].Base, RemoteKey: r.regions[1].RemoteKey, Length: 10, Flags: verbs.Signaled}}
	if _, err := r.pairs[0].Post(w); err != nil {
		t.Fatal(err)
	}
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
		if err := whole(); err != nil {
			t.Fatal(err)
		}
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
		r := &harness{lib: l}
		if err := r.setUp(""); err != nil {
			t.Fatal(err)
		}
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
	d, err := l.OpenDevice("fake0")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	c.Fail("ibv_reg_mr", 1, int(syscall.ENOMEM))
	if _, err := d.Register(4096, 4096, verbs.LocalWrite); err == nil || !strings.Contains(err.Error(), "RLIMIT_MEMLOCK") || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v", err)
	}
	if err := (&verbs.MemlockError{Need: 2, Limit: 1}).Error(); !strings.Contains(err, "LimitMEMLOCK") {
		t.Error(err)
	}
}

// TestNothingLeaks opens and closes all there is, many times.
func TestNothingLeaks(t *testing.T) {
	l, c := open(t)
	cycles := 10_000
	if testing.Short() {
		cycles = 100
	}
	before := descriptors(t)
	for range cycles {
		r := &harness{lib: l, withoutDMABuf: true}
		if err := errors.Join(r.setUp(""), r.close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.Live(""); n != 0 || l.OpenResources() != (verbs.Resources{}) {
		t.Errorf("%d handles are left, %+v", n, l.OpenResources())
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d files were open before, %d are after", before, after)
	}
}

func descriptors(t *testing.T) int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(names)
}

func BenchmarkRead(b *testing.B) {
	l, _ := open(b)
	r := &harness{lib: l}
	if err := r.setUp(""); err != nil {
		b.Fatal(err)
	}
	defer r.close()
	for b.Loop() {
		if err := r.transfer(64); err != nil {
			b.Fatal(err)
		}
	}
}
