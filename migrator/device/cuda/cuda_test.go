package cuda

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

func open(t testing.TB) (*Driver, *fake.Control) {
	t.Helper()
	path := fake.CUDA(t)
	c := fake.Open(t, path)
	d := testkit.Must(Open(path))
	if n := c.Live(""); n != 0 {
		t.Fatalf("%d handles are alive before the test", n)
	}
	return d, c
}

// TestShimUnderTheAddressSanitizer makes every call from C.
func TestShimUnderTheAddressSanitizer(t *testing.T) { fake.CheckShim(t, fake.CUDA(t)) }

// TestBareMachine opens the driver of this machine, if there is one.
func TestBareMachine(t *testing.T) {
	d, err := Open("")
	if err == nil {
		_, err = d.Count()
	}
	var failed *Error
	if err != nil && !errors.Is(err, device.ErrNoLibrary) && !errors.Is(err, device.ErrNoCgo) && !errors.As(err, &failed) {
		t.Error(err)
	}
}

func TestNoLibrary(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "libcuda.so.1"))
	if !errors.Is(err, device.ErrNoLibrary) && !errors.Is(err, device.ErrNoCgo) {
		t.Errorf("%v", err)
	}
	if _, err := Open("libc.so.6"); err != nil {
		var missing *device.SymbolError
		if !errors.As(err, &missing) && !errors.Is(err, device.ErrNoCgo) || missing != nil && missing.Symbol != "cuInit" {
			t.Errorf("Open of a library that is not a driver: %v", err)
		}
	} else {
		t.Error("Open of libc succeeded")
	}
}

// TestSymbolIsMissing opens drivers that lack one function each.
func TestSymbolIsMissing(t *testing.T) {
	open(t)
	for c := range callCount {
		t.Run(symbol(c), func(t *testing.T) {
			path := fake.Copy(t, fake.CUDA(t), symbol(c))
			d, err := Open(path)
			var missing *device.SymbolError
			switch {
			case optional[c]:
				if err != nil {
					t.Errorf("Open without an optional symbol: %v", err)
				} else if d.has(c) {
					t.Error("has reports a missing symbol")
				}
			case !errors.As(err, &missing) || missing.Symbol != symbol(c) || missing.Library != path:
				t.Errorf("%v", err)
			}
		})
	}
}

// TestEveryCallFails makes each call succeed once and fail once: the error names the
// call, the code and its name, and nothing is left open.
func TestEveryCallFails(t *testing.T) {
	d, control := open(t)
	if len(uses) != int(callCount) {
		t.Fatalf("%d of %d calls have a use", len(uses), callCount)
	}
	files := testkit.OpenFiles(t)
	r := newHarness(t, d)
	for c := range callCount {
		use := uses[c]
		if use == nil {
			continue
		}
		t.Run(symbol(c), func(t *testing.T) {
			before, live := control.Calls(symbol(c)), control.Live("")
			if err := use(r); err != nil {
				t.Fatalf("a good call: %v", err)
			}
			if control.Calls(symbol(c)) == before {
				t.Fatal("the use does not make the call")
			}
			control.Fail(symbol(c), 1, 801)
			err := use(r)
			var failed *Error
			if !errors.As(err, &failed) || failed.Call != symbol(c) || failed.Code != 801 || failed.Name != "CUDA_ERROR_NOT_SUPPORTED" {
				t.Errorf("%v", err)
			} else if text := err.Error(); !strings.Contains(text, symbol(c)+": CUDA_ERROR_NOT_SUPPORTED (801)") {
				t.Errorf("%q does not name the failed call", text)
			}
			if n := control.Live(""); n != live {
				t.Errorf("%d handles are open, %d were before", n, live)
			}
		})
	}
	if err := r.close(); err != nil {
		t.Error(err)
	}
	if n := control.Live(""); n != 0 || testkit.OpenFiles(t) > files {
		t.Errorf("%d handles and %d files are open, %d files were", n, testkit.OpenFiles(t), files)
	}
}

func TestInitFails(t *testing.T) {
	_, control := open(t)
	for _, name := range []string{"cuInit", "cuDriverGetVersion"} {
		control.Fail(name, 1, 12345)
		_, err := Open(fake.CUDA(t))
		var failed *Error
		if !errors.As(err, &failed) || failed.Call != name || failed.Code != 12345 || failed.Name != "unknown code" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRetainFails covers a device whose attributes cannot be read.
func TestRetainFails(t *testing.T) {
	d, control := open(t)
	control.Fail("cuDeviceGetAttribute", 1, 801)
	if _, err := d.RetainContext(0); !HasCode(err, NotSupported) || !strings.Contains(err.Error(), "cuDeviceGetAttribute") {
		t.Errorf("%v", err)
	}
	control.Fail("cuDeviceGetAttribute", 1, 1) // an attribute that the driver does not know
	c := testkit.Must(d.RetainContext(0))
	if a, err := c.CreateAllocation(1); err != nil {
		t.Error(err)
	} else if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := control.Live(""); n != 0 {
		t.Errorf("%d handles are open", n)
	}
}

// TestStickyCodes compares the sticky codes with those of the fake.
func TestStickyCodes(t *testing.T) {
	d, control := open(t)
	for code := 1; code < 1000; code++ {
		c := testkit.Must(d.RetainContext(0))
		control.Fail("cuMemGetAddressRange_v2", 1, code)
		if _, _, err := c.AllocationRange(1); !HasCode(err, Code(code)) {
			t.Errorf("code %d: %v", code, err)
		}
		_, _, err := c.AllocationRange(1) // no memory: InvalidValue, where the context lives
		if got := !HasCode(err, InvalidValue); got != Code(code).Sticky() && code != int(InvalidValue) {
			t.Errorf("code %d: sticky is %v, and then %v", code, Code(code).Sticky(), err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSticky checks that a sticky error stays until the context is made again, and that
// the end of a context closes everything in it.
func TestSticky(t *testing.T) {
	d, control := open(t)
	r := newHarness(t, d)
	control.Fail("cuLaunchKernel", 1, 700)
	if err := useKernel(r); !Sticky(err) {
		t.Fatalf("an illegal address is not sticky: %v", err)
	}
	if _, err := r.a.Alloc(4096); !Sticky(err) {
		t.Errorf("a call in a failed context: %v", err)
	}
	if _, err := r.b.Alloc(4096); err != nil {
		t.Errorf("a call in another context: %v", err)
	}
	// Objects of the process, and not of the context, are closed as usual.
	if err := errors.Join(r.mapping.Close(), r.descriptor.Close(), r.allocation.Close()); err != nil {
		t.Error(err)
	}
	if err := errors.Join(r.b.Close(), r.a.Close()); err != nil {
		t.Error(err)
	}
	if n := control.Live(""); n != 0 {
		t.Errorf("%d handles are open after their contexts have ended", n)
	}
	fresh := newHarness(t, d)
	if err := useKernel(fresh); err != nil {
		t.Errorf("a call in a new context: %v", err)
	}
	if err := fresh.close(); err != nil {
		t.Error(err)
	}
}

// TestOldBatch uses a driver with the older batch call, and one without any.
func TestOldBatch(t *testing.T) {
	open(t)
	for name, c := range map[string]struct {
		without []string
		want    bool
	}{"old": {[]string{"cuMemcpyBatchAsync_v2"}, true}, "none": {[]string{"cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync"}, false}} {
		path := fake.Copy(t, fake.CUDA(t), c.without...)
		control := fake.Open(t, path)
		d := testkit.Must(Open(path))
		if d.SupportsBatches() != c.want {
			t.Errorf("%s: SupportsBatches is %v", name, d.SupportsBatches())
		}
		if !c.want {
			continue
		}
		r := newHarness(t, d)
		if err := useBatch(r); err != nil {
			t.Error(err)
		}
		if control.Calls("cuMemcpyBatchAsync") != 1 {
			t.Error("the older call was not made")
		}
		control.Fail("cuMemcpyBatchAsync", 1, 1)
		if err := useBatch(r); err == nil || !strings.Contains(err.Error(), "cuMemcpyBatchAsync: CUDA_ERROR_INVALID_VALUE (1)") {
			t.Errorf("%v", err)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCallsDoNotAllocate(t *testing.T) {
	d, _ := open(t)
	r := newHarness(t, d)
	defer r.close()
	args := []uint64{uint64(r.memory), 0, uint64(r.memory), 0, 16, 1, uint64(r.memory)}
	if n := testing.AllocsPerRun(100, func() {
		if err := errors.Join(r.stream.Copy(r.memory, r.memory+64, 64), r.event.Record(r.stream), r.kernel.Launch(r.stream, 8, 64, args)); err != nil {
			t.Error(err)
		}
		if _, err := r.event.Done(); err != nil {
			t.Error(err)
		}
	}); n > 0 && !testkit.RaceEnabled { // which allocates
		t.Errorf("four calls allocate %.0f times", n)
	}
	if err := r.stream.Wait(); err != nil {
		t.Error(err)
	}
}
