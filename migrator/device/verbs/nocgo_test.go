package verbs_test

import (
	"errors"
	"os"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// TestOpenWithoutLibraries is run by migrator/device, without cgo.
func TestOpenWithoutLibraries(t *testing.T) {
	if os.Getenv("CGO_ENABLED") != "0" {
		t.Skip("run by package device's TestWithoutCgo")
	}
	if _, err := verbs.Open(""); !errors.Is(err, device.ErrNoCgo) {
		t.Errorf("%v", err)
	}
}

// TestBareMachine opens the library of this machine, if there is one.
func TestBareMachine(t *testing.T) {
	l, err := verbs.Open("")
	if err != nil {
		if !errors.Is(err, device.ErrNoLibrary) && !errors.Is(err, device.ErrNoCgo) {
			t.Error(err)
		}
		return
	}
	if _, err := l.Devices(); err != nil {
		t.Error(err)
	}
}
