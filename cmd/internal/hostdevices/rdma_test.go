package hostdevices

import (
	"bytes"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/fake"
)

// TestRDMA looks for RDMA devices without a library, with a device, and with a library that fails.
func TestRDMA(t *testing.T) {
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	t.Setenv("CASCADE_TEST_LIBIBVERBS", filepath.Join(t.TempDir(), "libibverbs.so.1"))
	if RDMA(log) != nil || said.Len() > 0 {
		t.Errorf("without a library: %s", &said)
	}
	path := fake.Verbs(t)
	c := fake.Open(t, path)
	t.Setenv("CASCADE_TEST_LIBIBVERBS", path)
	if RDMA(log) == nil || !strings.Contains(said.String(), "fake0") {
		t.Errorf("with a device: %s", &said)
	}
	c.Fail("ibv_get_device_list", 1, int(syscall.ENOMEM))
	if RDMA(log) != nil || !strings.Contains(said.String(), "ibv_get_device_list") {
		t.Errorf("with a library that fails: %s", &said)
	}
	c.Fail("ibv_get_device_list", 1, int(syscall.ENOSYS)) // a kernel without RDMA
	said.Reset()
	if RDMA(log) != nil || said.Len() > 0 {
		t.Errorf("with a kernel that has none: %s", &said)
	}
}
