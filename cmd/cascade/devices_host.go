package main

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// describeHost takes stock of a machine, and says in one line what of it carries KV blocks; what
// is missing is for the log. It opens no GPU: a machine without one has looked into a few
// folders then, and for three libraries.
func describeHost(where inventory.Config, log *slog.Logger) string {
	m, err := inventory.Read(where)
	for _, line := range inventory.Missing(m) {
		log.Info("this machine lacks", "what", line)
	}
	if err != nil {
		log.Warn("this machine's devices", "error", err)
	}
	return summarizeHost(m)
}

// summarizeHost is a machine in one line.
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
		gpus += " and no driver of one"
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
	return "this machine: " + gpus + "; " + ports + ` ("cascade devices" tells more)`
}
