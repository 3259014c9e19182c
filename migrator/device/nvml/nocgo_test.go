//go:build !cgo || !linux

package nvml

import (
	"errors"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
)

func TestOpenWithoutLibraries(t *testing.T) {
	if _, err := Open(Config{}); !errors.Is(err, device.ErrNoCgo) {
		t.Errorf("%v", err)
	}
	l := &Library{}
	if _, err := l.Read(); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := errors.Join(l.Close()); err != nil {
		t.Error(err)
	}
	if err := l.WatchXids(t.Context(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}
