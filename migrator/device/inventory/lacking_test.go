//go:build cgo && linux

package inventory

import (
	"errors"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

// TestLackingSymbols takes one symbol after the other from the library. A driver that lacks a required one is no
// inventory's; the results of others are left out.
func TestLackingSymbols(t *testing.T) {
	whole := fake.NVML(t)
	t.Setenv("FAKE_NVML_XID", "0:1")
	t.Setenv("FAKE_NVML_LINKS", "switch")
	for c := range callCount {
		t.Run(symbol(c), func(t *testing.T) {
			path := fake.Copy(t, whole, symbol(c))
			in, xids, err := useLibrary(path)
			var lacks *device.SymbolError
			watches := !strings.HasPrefix(symbol(c), "nvmlEvent") && c != nvmlDeviceRegisterEvents
			switch missing := errors.As(err, &lacks) && lacks.Symbol == symbol(c) && lacks.Library == path; {
			case c < requiredCalls && !missing:
				t.Errorf("opened: %v", err)
			case c < requiredCalls:
			case !watches && (!missing || len(in.GPUs) != 2):
				t.Errorf("%d GPUs, watched: %v", len(in.GPUs), err)
			case watches && (err != nil || len(in.GPUs) != 2 || len(xids) != 2):
				t.Errorf("%d GPUs, events %v: %v", len(in.GPUs), xids, err)
			}
		})
	}
	if s := symbol(callCount); s != "" {
		t.Errorf("shim.h has more functions than calls.go: %s", s)
	}
}

func TestWithoutALibrary(t *testing.T) {
	if _, err := OpenNVML(NVMLConfig{Library: "libnothing-at-all.so.1"}); !errors.Is(err, device.ErrNoLibrary) {
		t.Error(err)
	}
}
