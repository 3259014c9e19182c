package hostdevices

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// Report is what "cascade devices --json" prints.
type Report struct {
	Machine *topology.Machine `json:"machine"`
	// Missing and Failed are for human readers: what the host lacks, and which calls to its devices
	// failed.
	Missing []string        `json:"missing"`
	Failed  []string        `json:"failed,omitempty"`
	Pairs   []topology.Pair `json:"pairs"`
}

// Text prints the tables that have rows; with all, every path of every pair.
func (k Report) Text(w io.Writer, all bool) error {
	m := k.Machine
	driver := "no GPU driver"
	if m.Driver != "" {
		driver = "GPU driver " + m.Driver
	}
	if _, err := fmt.Fprintf(w, "%s: %s of memory, %s free; %s; %s\n", m.Name, gib(m.Memory.Total), gib(m.Memory.Free), numa(m), driver); err != nil {
		return err
	}
	tables := slices.DeleteFunc([]report.Table{gpuTable(m), nicTable(m), k.pairTable(all)}, func(t report.Table) bool { return len(t.Rows) == 0 })
	if err := report.WriteTables(w, tables...); err != nil {
		return err
	}
	for _, l := range []struct {
		title string
		lines []string
	}{{"missing:", k.Missing}, {"calls that failed:", k.Failed}} {
		if len(l.lines) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s\n  %s\n", l.title, strings.Join(l.lines, "\n  ")); err != nil {
			return err
		}
	}
	return nil
}

func gib(b policies.Bytes) string { return fmt.Sprintf("%.1f GiB", float64(b)/(1<<30)) }

func numa(m *topology.Machine) string {
	var nodes []string
	for _, n := range m.NUMA {
		nodes = append(nodes, fmt.Sprintf("%d (CPUs %s, %s)", n.ID, n.CPUs, gib(n.Memory.Total)))
	}
	if len(nodes) == 0 {
		return "no NUMA nodes"
	}
	return "NUMA " + strings.Join(nodes, ", ")
}

func gpuTable(m *topology.Machine) report.Table {
	t := report.Table{Title: "GPUs", Header: []string{"gpu", "name", "uuid", "PCI", "NUMA", "PCIe", "NVLinks", "health", "memory", "free"}, Left: 8}
	for _, g := range m.GPUs {
		index, name := fmt.Sprint(g.Index), g.Name
		if g.Index == topology.Unknown {
			index = "-"
		}
		if g.MIG {
			name += " (MIG)"
		}
		t.Rows = append(t.Rows, []string{index, name, g.UUID, g.PCI.Address, numaOf(g.PCI), pcieOf(g.PCI.Link), nvlinks(m, g), healthOf(g.Health), gib(g.Memory.Total), gib(g.Memory.Free)})
	}
	return t
}

func numaOf(p topology.PCI) string {
	if p.NUMA == topology.Unknown {
		return "-"
	}
	return fmt.Sprint(p.NUMA)
}

// pcieOf describes a PCIe link at its highest speed and width.
func pcieOf(l topology.PCIe) string {
	if l == (topology.PCIe{}) {
		return "-"
	}
	return fmt.Sprintf("gen%d x%d", max(l.Gen, l.MaxGen), cmp.Or(l.Width, l.MaxWidth))
}

// nvlinks counts a GPU's NVLinks by the device at their other end.
func nvlinks(m *topology.Machine, g topology.GPU) string {
	var order []string
	count := map[string]int{}
	for _, l := range g.NVLinks {
		to := "down"
		switch {
		case l.Active && l.Switch:
			to = "switch"
		case l.Active:
			to = cmp.Or(l.Remote, "unknown")
			for _, o := range m.GPUs {
				if o.PCI.Address == l.Remote && o.Index != topology.Unknown {
					to = fmt.Sprint("gpu", o.Index)
				}
			}
		}
		if count[to]++; count[to] == 1 {
			order = append(order, to)
		}
	}
	for i, to := range order {
		order[i] = fmt.Sprintf("%d %s", count[to], to)
	}
	return cmp.Or(strings.Join(order, ", "), "-")
}

func healthOf(h topology.Health) string {
	words := slices.Clone(h.Throttled)
	for i := range words {
		words[i] = "slowed: " + words[i]
	}
	if p := h.Problem(); p != "" {
		words = append([]string{p}, words...)
	}
	return cmp.Or(strings.Join(words, ", "), "good")
}

func nicTable(m *topology.Machine) report.Table {
	t := report.Table{Title: "NICs", Header: []string{"nic", "speaks", "state", "PCI", "NUMA", "nearest GPU", "rate"}, Left: 6}
	for _, n := range m.NICs {
		name, speaks, state := n.Name, "IP", "down"
		if n.RDMA != "" {
			name, speaks = fmt.Sprintf("%s port %d", n.Name, n.Port), "RDMA over "+n.RDMA
		}
		if n.Up {
			state = "up"
		}
		near, best := "-", links.UnknownDistance
		for _, g := range m.GPUs {
			if d := topology.Between(g.PCI, n.PCI); d < best && g.Index != topology.Unknown {
				near, best = fmt.Sprintf("gpu%d (%s)", g.Index, d), d
			}
		}
		t.Rows = append(t.Rows, []string{name, speaks, state, cmp.Or(n.PCI.Address, "-"), numaOf(n.PCI), near, n.Rate.String()})
	}
	return t
}

func (k Report) pairTable(all bool) report.Table {
	t := report.Table{Title: "paths", Header: []string{"from", "to", "transport", "path", "reason", "rate", "latency"}, Left: 5}
	for _, p := range k.Pairs {
		paths := []links.Path{p.Best()}
		if all {
			paths = p.Paths
		}
		for i, w := range paths {
			from, to := string(p.From), string(p.To)
			if i > 0 {
				from, to = "", ""
			}
			t.Rows = append(t.Rows, pathCells(from, to, w, w.Reason))
		}
	}
	return t
}
