package hostdevices

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// Describe inspects a host, logs what it lacks, and returns one line about its means of
// carrying KV blocks. It opens no GPU: on a host without one it reads a few directories and looks
// for three libraries.
func Describe(where inventory.Config, log *slog.Logger) string {
	m, err := inventory.Read(where)
	for _, line := range inventory.Missing(m) {
		log.Info("device support missing", "what", line)
	}
	if err != nil {
		log.Warn("inspecting devices failed", "error", err)
	}
	return summarizeHost(m)
}

// summarizeHost returns one line about a host.
func summarizeHost(m *topology.Machine) string {
	gpus := "no GPU"
	if n := len(m.GPUs); n > 0 {
		var names []string
		count := map[string]int{}
		for _, g := range m.GPUs {
			if count[g.Name]++; count[g.Name] == 1 {
				names = append(names, g.Name)
			}
		}
		for i, name := range names {
			names[i] = fmt.Sprintf("%d × %s", count[name], name)
		}
		gpus = strings.Join(names, ", ")
		if m.Driver != "" {
			gpus += ", driver " + m.Driver
		}
	} else if m.Driver == "" {
		gpus += " and no GPU driver"
	}
	rdma := 0
	for _, n := range m.NICs {
		if n.RDMA != "" && n.Up {
			rdma++
		}
	}
	ports := "no RDMA device"
	if rdma > 0 {
		ports = fmt.Sprintf("RDMA ports: %d", rdma)
	}
	return "this host: " + gpus + "; " + ports + ` (see "cascade devices")`
}
