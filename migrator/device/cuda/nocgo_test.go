package cuda

import (
	"errors"
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// TestOpenWithoutLibraries is run by migrator/device, without cgo.
func TestOpenWithoutLibraries(t *testing.T) {
	if os.Getenv("CGO_ENABLED") != "0" {
		t.Skip("run by package device's TestWithoutCgo")
	}
	if _, err := Open(""); !errors.Is(err, device.ErrNoCgo) {
		t.Errorf("%v", err)
	}
}

// TestBareMachine opens the driver of this machine, if there is one.
func TestBareMachine(t *testing.T) {
	d, err := Open("")
	var failed *Error
	switch {
	case err == nil:
		if _, err := d.Count(); err != nil {
			t.Error(err)
		}
	case errors.Is(err, device.ErrNoLibrary), errors.Is(err, device.ErrNoCgo), errors.As(err, &failed):
	default:
		t.Errorf("%v", err)
	}
}
