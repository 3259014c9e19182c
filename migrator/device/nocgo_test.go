package device_test

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
)

// TestWithoutCgo runs TestWithoutLibraries in a test binary of this package without cgo.
func TestWithoutCgo(t *testing.T) {
	if os.Getenv("CGO_ENABLED") == "0" {
		testkit.Skip(t, testkit.Unavailable{What: "this is the run without cgo", Remedy: "unset CGO_ENABLED"})
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-run", "^TestWithoutLibraries$", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestWithoutLibraries checks that a program without cgo builds, and says that it has none.
func TestWithoutLibraries(t *testing.T) {
	if os.Getenv("CGO_ENABLED") != "0" {
		testkit.Skip(t, testkit.Unavailable{What: "this is a build with cgo", Remedy: "run TestWithoutCgo, which builds one without"})
	}
	_, loaded := device.Load("libc.so.6")
	_, found := (&device.Library{}).Symbol("getpid")
	_, asked := cuda.Open("")
	_, listed := verbs.Open("")
	_, opened := inventory.OpenNVML(inventory.NVMLConfig{})
	for call, err := range map[string]error{"Load": loaded, "Symbol": found, "cuda.Open": asked, "verbs.Open": listed, "nvml.Open": opened} {
		if !errors.Is(err, device.ErrNoCgo) {
			t.Errorf("%s: %v", call, err)
		}
	}
	if m, _ := inventory.Read(inventory.Config{Name: "here"}); m.Name != "here" || len(inventory.Missing(m)) == 0 {
		t.Errorf("%+v", m)
	}
}
