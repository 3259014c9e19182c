//go:build cgo && linux

package fake

/*
#include <stdlib.h>
static int control(void *f, const char *name, long a, long b) {
	return ((int (*)(const char *, long, long))f)(name, a, b);
}
*/
import "C"

import (
	"testing"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// Control controls a fake library in tests. All users of one path in a process share one
// library with one state.
type Control struct {
	t   testing.TB
	lib *device.Library
}

// Open returns the Control of the fake at a path. At the end of the test, injected
// failures are cleared.
func Open(t testing.TB, path string) *Control {
	t.Helper()
	lib, err := device.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	c := &Control{t, lib}
	t.Cleanup(c.Clear)
	return c
}

// call may be called from any goroutine: without the function it fails the test, which goes on.
func (c *Control) call(function, name string, a, b int) int {
	f, err := c.lib.Symbol(function)
	if err != nil {
		c.t.Error(err)
		return -1
	}
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	return int(C.control(f, s, C.long(a), C.long(b)))
}

// Fail makes the nth call of a function from now on, counted from 1, fail with a code.
// "*" means any function. A negative nth means that call and, with libcuda, all calls
// after it.
func (c *Control) Fail(function string, nth, code int) { c.call("fake_fail", function, nth, code) }

// Clear clears the injected failures, and ends Pause.
func (c *Control) Clear() { c.call("fake_clear", "", 0, 0) }

// Pause makes the library's own threads wait before their next piece of work, until
// Resume.
func (c *Control) Pause() { c.call("fake_hold", "", 1, 0) }

// Resume ends Pause.
func (c *Control) Resume() { c.call("fake_hold", "", 0, 0) }

// Calls returns how often a function was called.
func (c *Control) Calls(function string) int { return c.call("fake_calls", function, 0, 0) }

// Live returns the number of open handles of a kind; "" means all kinds.
func (c *Control) Live(kind string) int { return c.call("fake_live", kind, 0, 0) }

// Query calls a function of the fake's own with a number, and returns its result.
func (c *Control) Query(function string, value int) int { return c.call(function, "", value, 0) }

// Set calls a function of the fake's own with a number. The source of the library lists
// these functions.
func (c *Control) Set(function string, value int) { c.call(function, "", value, 0) }
