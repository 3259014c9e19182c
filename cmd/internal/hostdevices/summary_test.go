package hostdevices

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// TestDescribeHost checks that a host is described in one line, and that this does not start the
// driver.
func TestDescribeHost(t *testing.T) {
	var log strings.Builder
	bare := inventory.Config{Sysfs: t.TempDir(), Proc: t.TempDir(), CUDA: "libnone1.so", NVML: "libnone2.so", Verbs: "libnone3.so"}
	line := Describe(bare, slog.New(slog.NewTextHandler(&log, nil)))
	if line != `this host: no GPU and no GPU driver; no RDMA device (see "cascade devices")` {
		t.Error(line)
	}
	if n := strings.Count(log.String(), "device support missing"); n != 5 || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("%d lines: %s", n, &log)
	}
	library := fake.CUDA(t)
	c := fake.Open(t, library)
	before := c.Calls("cuInit")
	bare.CUDA = library
	Describe(bare, slog.New(slog.DiscardHandler))
	if n := c.Calls("cuInit") - before; n != 0 {
		t.Errorf("the driver is started %d times", n)
	}
}

func TestSummarizeHost(t *testing.T) {
	m := &topology.Machine{
		Driver: "570.1", GPUs: []topology.GPU{{Name: "NVIDIA H200"}, {Name: "NVIDIA L4"}, {Name: "NVIDIA H200"}},
		NICs: []topology.NIC{{Name: "mlx5_0", RDMA: "InfiniBand", Up: true}, {Name: "mlx5_1", RDMA: "InfiniBand"}, {Name: "eth0", Up: true}},
	}
	if got := summarizeHost(m); got != `this host: 2 × NVIDIA H200, 1 × NVIDIA L4, driver 570.1; RDMA ports: 1 (see "cascade devices")` {
		t.Error(got)
	}
}
