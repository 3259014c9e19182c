//go:build cgo && linux

package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies/links"
)

// tree lays an archive's files and links out.
func tree(t *testing.T, archive string) string {
	a := testkit.Must(txtar.ParseFile(archive))
	root := t.TempDir()
	put := func(path string, f func(string) error) {
		path = filepath.Join(root, path)
		testkit.NoError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), f(path)))
	}
	for _, file := range a.Files {
		if file.Name == "links" {
			for line := range strings.Lines(string(file.Data)) {
				link, to, _ := strings.Cut(strings.TrimSpace(line), " -> ")
				put(link, func(path string) error { return os.Symlink(to, path) })
			}
			continue
		}
		put(file.Name, func(path string) error { return os.WriteFile(path, file.Data, 0o644) })
	}
	return root
}

func TestTwoSockets(t *testing.T) {
	t.Setenv("FAKE_NVML_GPUS", "4")
	t.Setenv("FAKE_NVML_LINKS", "direct")
	m := testkit.Must(Read(Config{Name: "a", Sysfs: tree(t, "testdata/two-sockets.txtar"), NVML: fake.NVML(t), CUDA: "libc.so.6", Verbs: "libc.so.6"}))
	// nvidia_peermem is loaded, and not what transport verbs registers by.
	if lines := Missing(m); len(lines) != 1 || !strings.Contains(lines[0], "dma-buf") {
		t.Errorf("%q", lines)
	}
	if m.Memory != (topology.Memory{Total: 1 << 40, Free: 1 << 39}) || len(m.NUMA) != 2 || m.NUMA[1].CPUs != "32-63" || !reflect.DeepEqual(m.NUMA[1].Distance, []int{21, 10}) {
		t.Errorf("%+v %+v", m.Memory, m.NUMA)
	}
	if len(m.GPUs) != 5 || m.PeerMemory != "" || m.Driver != "999.1" {
		t.Fatalf("%+v", m)
	}
	if want := []string{"pci0000:0f", "0000:0f:01.0", "0000:0f:02.0", "0000:0f:03.0", "0000:10:00.0"}; !reflect.DeepEqual(m.GPUs[0].PCI.Path, want) {
		t.Errorf("%v", m.GPUs[0].PCI)
	}
	for i, numa := range []int{0, 0, 1, 1, 1} {
		if m.GPUs[i].PCI.NUMA != numa {
			t.Errorf("%+v", m.GPUs[i].PCI)
		}
	}
	if g := m.GPUs[4]; g.Index != topology.Unknown || g.PCI.Address != "0000:50:00.0" || g.Health.Problem() == "" || g.PCI.Link.MaxGen != 5 {
		t.Errorf("%+v", g)
	}
	byName := map[string]topology.NIC{}
	for _, n := range m.NICs {
		byName[n.Name] = n
	}
	if n := m.NICs; len(n) != 4 || n[2].Name != "mlx5_0" || n[2].Port != 1 || !n[2].Up || n[2].Rate != 50*links.Gigabyte || n[2].RDMA != "InfiniBand" || n[2].Subnet != "fec0:0000:0000:0001" || n[3].Subnet != "" || n[3].Up {
		t.Errorf("%+v", n)
	}
	if n := byName["eth0"]; !n.Up || n.Rate != 25*links.Gigabit || n.PCI.NUMA != 1 || n.PCI.Link != (topology.PCIe{Gen: 3, Width: 8, MaxGen: 3, MaxWidth: 8}) || n.Virtual {
		t.Errorf("%+v", n)
	}
	if n := byName["docker0"]; n.Up || !n.Virtual {
		t.Errorf("%+v", n)
	}
	for _, c := range []struct {
		a, b topology.PCI
		want links.Distance
	}{
		{m.GPUs[0].PCI, m.GPUs[1].PCI, links.Switch},
		{m.GPUs[0].PCI, m.NICs[2].PCI, links.Switch},
		{m.GPUs[2].PCI, m.GPUs[3].PCI, links.NUMANode},
		{m.GPUs[0].PCI, m.GPUs[3].PCI, links.System},
	} {
		if got := topology.Between(c.a, c.b); got != c.want {
			t.Errorf("%v to %v: %v", c.a, c.b, got)
		}
	}
}

// TestCallsFail keeps what is known when some calls of the driver fail.
func TestCallsFail(t *testing.T) {
	path := fake.NVML(t)
	fake.Open(t, path).Fail("nvmlDeviceGetName", 2, 999)
	m, err := Read(Config{Sysfs: t.TempDir(), NVML: path})
	var failed *CallError
	if !errors.As(err, &failed) || failed.GPU != 1 || len(m.GPUs) != 2 || m.GPUs[0].Name == "" || m.GPUs[1].UUID == "" {
		t.Errorf("%+v, %v", m, err)
	}
	if m.PeerMemory != "" || !strings.Contains(strings.Join(Missing(m), "\n"), "no GPUDirect RDMA") {
		t.Errorf("%q", Missing(m))
	}
}

func TestOpenDriver(t *testing.T) {
	proc := t.TempDir()
	if err := errors.Join(os.MkdirAll(proc+"/driver/nvidia", 0o755), os.WriteFile(proc+"/driver/nvidia/version", []byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  999.1\n"), 0o644),
		os.WriteFile(proc+"/meminfo", []byte("MemTotal:  2048 kB\nMemFree:  1024 kB\nHugePages_Total:  0\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	m, err := Read(Config{Sysfs: t.TempDir(), Proc: proc, NVML: fake.NVML(t)})
	if err != nil || m.PeerMemory != "dma-buf" || m.Memory != (topology.Memory{Total: 2 << 20, Free: 1 << 20}) {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestOddFiles(t *testing.T) {
	for speed, want := range map[string]int{"": 0, "Unknown": 0, "2.5 GT/s PCIe": 1, "64.0 GT/s PCIe": 6, "7 GT/s": 0} {
		if got := pcieGeneration(speed); got != want {
			t.Errorf("%q is %d", speed, got)
		}
	}
	for rate, want := range map[string]links.Rate{"": 0, "10": 0, "2.5 Gb/sec (1X SDR)": 2500 * links.Megabyte / 8, "-1 Gb/sec": 0, "NaN Gb/sec": 0, "1e300 Gb/sec": 0} {
		if got := parseRate(rate); got != want {
			t.Errorf("%q is %d", rate, got)
		}
	}
	if m := parseMeminfo("MemTotal: -1 kB\nMemFree: 99999999999999999999 kB\nMemTotal:"); m != (topology.Memory{}) {
		t.Errorf("%+v", m)
	}
}
