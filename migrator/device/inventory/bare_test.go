package inventory

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// TestThisMachine takes stock of wherever the tests run.
func TestThisMachine(t *testing.T) {
	m, err := Read(Config{Name: "here"})
	t.Logf("%+v\n%v\n%s", m, err, strings.Join(Missing(m), "\n"))
	if m.Name != "here" || m.Memory.Total <= 0 || len(m.Libraries) != 3 {
		t.Errorf("%+v", m)
	}
}

// TestNothingWithoutLibraries is a machine that shows nothing at all.
func TestNothingWithoutLibraries(t *testing.T) {
	m, err := Read(Config{Sysfs: t.TempDir(), Proc: t.TempDir(), CUDA: "libnone.so.1", NVML: "libnone.so.1", Verbs: "libnone.so.1"})
	if err != nil || len(m.GPUs) != 0 || len(m.NICs) != 0 || m.Memory != (topology.Memory{}) {
		t.Errorf("%+v, %v", m, err)
	}
	if lines := Missing(m); len(lines) != 5 {
		t.Errorf("%q", lines)
	}
}
