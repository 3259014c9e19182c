//go:build !cgo || !linux

package fake

import (
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// Control cannot be used on this platform.
type Control struct{}

// Open skips the test: no library can be loaded.
func Open(t testing.TB, path string) *Control {
	RequireOpened(t, device.ErrNoCgo)
	return nil
}

// Fail does nothing.
func (c *Control) Fail(function string, nth, code int) {}

// Clear does nothing.
func (c *Control) Clear() {}

// Pause does nothing.
func (c *Control) Pause() {}

// Resume does nothing.
func (c *Control) Resume() {}

// Calls returns 0.
func (c *Control) Calls(function string) int { return 0 }

// Live returns 0.
func (c *Control) Live(kind string) int { return 0 }

// Query returns 0.
func (*Control) Query(string, int) int { return 0 }

// Set does nothing.
func (c *Control) Set(function string, value int) {}
