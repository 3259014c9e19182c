package hostdevices

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

const (
	// shownPairs is the largest number of replicas whose pairs are shown one by one. For a larger
	// model, equal pairs are counted, unless -a asks for all.
	shownPairs = 12
	// mostPairs is the largest number of replicas whose pairs --json lists: 65,280 pairs.
	mostPairs = 256
)

// pairState is a pair of replicas of a running fleet.
type pairState struct {
	From policies.ReplicaID `json:"from"`
	To   policies.ReplicaID `json:"to"`
	// Path is the path that the receiver tries first, as far as the control plane knows, with the
	// rate by which migrations are priced. Against is the reason why no better path is used.
	Path    links.Path `json:"path"`
	Against string     `json:"against,omitempty"`
	// Measured is the rate of the receiver's pulls by that path, in bytes per second.
	Measured float64 `json:"measured_bytes_per_second,omitempty"`
	// Paths lists all paths, best first.
	Paths []links.Path `json:"paths"`
}

// modelDevices is one model of a running fleet.
type modelDevices struct {
	control.DeviceModel
	// Pairs lists the replicas that may migrate requests to each other. It is empty for a model
	// with more than 256 replicas.
	Pairs []pairState `json:"pairs"`
}

// FleetReport is what "cascade devices --control … --json" prints.
type FleetReport struct {
	Models []modelDevices `json:"models"`
}

// NewFleetReport returns the devices of a running fleet; with pairs, also the pairs of each model of up to 256 replicas.
func NewFleetReport(ctx context.Context, d control.Devices, pairs bool) FleetReport {
	out := FleetReport{Models: []modelDevices{}}
	for _, model := range d.Models {
		m := modelDevices{DeviceModel: model, Pairs: []pairState{}}
		if pairs && len(m.Replicas) <= mostPairs {
			m.Pairs = replicaPairs(ctx, model)
		}
		out.Models = append(out.Models, m)
	}
	return out
}

// Text prints the models of the fleet; with all, every path of every pair.
func (r FleetReport) Text(ctx context.Context, w io.Writer, all bool) error {
	for i, m := range r.Models {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := m.text(ctx, w, all); err != nil {
			return err
		}
	}
	return nil
}

// replicaPairs returns all ordered pairs of different replicas of a model.
func replicaPairs(ctx context.Context, m control.DeviceModel) []pairState {
	out := []pairState{}
	for _, from := range m.Replicas {
		for _, to := range m.Replicas {
			if from.Replica != to.Replica && ctx.Err() == nil {
				out = append(out, newPairState(m, from, to))
			}
		}
	}
	return out
}

// newPairState combines the links between two replicas with the receiver's
// report of its transports.
func newPairState(m control.DeviceModel, from, to control.Device) pairState {
	p := pairState{From: from.Replica, To: to.Replica, Paths: links.Paths(from.Topology, to.Topology)}
	var against []string
	usable := slices.DeleteFunc(slices.Clone(p.Paths), func(w links.Path) bool {
		if w.Closed {
			return false
		}
		why := unsuitedReason(to, from.Replica, w.Transport)
		if why != "" {
			against = append(against, w.Transport+": "+why)
		}
		return why != ""
	})
	p.Path, p.Against = links.BestPath(usable), strings.Join(slices.Compact(against), "; ")
	if p.Path.Closed {
		p.Path, p.Against = links.BestPath(p.Paths), "" // no path works: requests are re-prompted
	}
	var d links.Rates
	if m.Links != nil {
		d = *m.Links
	}
	if priced := d.BestPath(from.Topology, to.Topology); priced.Transport == p.Path.Transport && priced.Kind == p.Path.Kind {
		p.Path = priced
	}
	for _, t := range to.Transports {
		if t.Peer == from.Replica && t.Name == p.Path.Transport {
			p.Measured = t.Rate
		}
	}
	return p
}

// unsuitedReason returns why a receiver does not pull from a peer by a transport: the receiver
// reports that the transport is broken, suspended for the peer, or missing. It returns "" if there
// is no reason.
func unsuitedReason(to control.Device, from policies.ReplicaID, transport string) string {
	has := false
	for _, t := range to.Transports {
		switch {
		case t.Name != transport:
		case t.Peer == "" && (t.State == loadreport.RouteBroken || t.State == loadreport.RouteUnsuited):
			return t.State + ", " + t.Reason
		case t.Peer == from && t.State == loadreport.RouteHeld:
			return "held back, " + t.Reason
		case t.Peer == "":
			has = true
		}
	}
	if !has && len(to.Transports) > 0 {
		return fmt.Sprintf("%s does not have it", to.Replica)
	}
	return ""
}

// text prints a model's replicas and pairs.
func (m modelDevices) text(ctx context.Context, w io.Writer, all bool) error {
	hosts := report.Table{Title: m.Name, Header: []string{"replica", "stage", "host", "KV cache in", "NVLinks", "RDMA port", "IP", "PCIe"}, Left: 6}
	for _, r := range m.Replicas {
		hosts.Rows = append(hosts.Rows, topologyCells(r))
		if r.Note != "" {
			hosts.Notes = append(hosts.Notes, fmt.Sprintf("%s: %s.", r.Replica, r.Note))
		}
	}
	if m.Links == nil {
		hosts.Notes = append(hosts.Notes, "Links make no difference to plans of this fleet.")
	}
	t := m.groupTable()
	if all || len(m.Replicas) <= shownPairs {
		t = m.pairTable(ctx, all)
	}
	if len(t.Rows) == 0 {
		return hosts.Text(w)
	}
	return report.WriteTables(w, hosts, t)
}

func topologyCells(r control.Device) []string {
	s, memory, linked, port, pcie := r.Topology, "not known", "-", "-", "-"
	switch g := s.GPU; {
	case !s.Known:
	case g == nil:
		memory = "host memory"
	default:
		memory = fmt.Sprintf("GPU %d", g.Index)
		for _, wrong := range []string{map[bool]string{true: "not there"}[g.Absent], g.Lost, map[bool]string{true: "MIG"}[g.MIG]} {
			if wrong != "" {
				memory += ", " + wrong
			}
		}
		linked, pcie = nvlinkCell(g), g.PCIe.String()
	}
	if p := s.RDMA; p != nil {
		port = fmt.Sprintf("%s, %s, %s", p.Name, strings.TrimSpace(p.Layer+" "+p.Subnet), p.Rate)
		if s.GPU != nil {
			port += fmt.Sprintf(" (%s)", p.Distance)
		}
	}
	return []string{string(r.Replica), cmp.Or(r.Stage, "–"), s.Host, memory, linked, port, s.TCP.String(), pcie}
}

// nvlinkCell counts a GPU's NVLinks by the device at their other end.
func nvlinkCell(g *links.GPU) string {
	var ends []string
	if n := g.Switched.Links; n > 0 {
		ends = append(ends, fmt.Sprintf("%d switch", n))
	}
	for _, p := range g.Peers {
		if n := p.NVLinks.Links; n > 0 {
			to := p.Address
			if p.Index != links.UnknownIndex {
				to = fmt.Sprint("gpu", p.Index)
			}
			ends = append(ends, fmt.Sprintf("%d %s", n, to))
		}
	}
	return cmp.Or(strings.Join(ends, ", "), "-")
}

// pairTable returns a row per pair; with all, a row per path of each pair.
func (m modelDevices) pairTable(ctx context.Context, all bool) report.Table {
	t := report.Table{Title: "paths", Header: []string{"from", "to", "transport", "path", "reason", "rate", "latency", "measured"}, Left: 5}
	for _, p := range replicaPairs(ctx, m.DeviceModel) {
		measured := "-"
		if p.Measured > 0 {
			measured = links.Rate(p.Measured).String()
		}
		t.Rows = append(t.Rows, append(pathCells(string(p.From), string(p.To), p.Path, pairReason(p)), measured))
		if all {
			for _, w := range p.Paths {
				if w.Transport != p.Path.Transport || w.Kind != p.Path.Kind {
					t.Rows = append(t.Rows, append(pathCells("", "", w, w.Reason), "-"))
				}
			}
		}
	}
	return t
}

// pairReason returns why a pair uses its path.
func pairReason(p pairState) string {
	if p.Against == "" {
		return p.Path.Reason
	}
	return fmt.Sprintf("%s (not %s)", p.Path.Reason, p.Against)
}

// pathCells returns the cells of a path from one replica to another, up to its latency.
func pathCells(from, to string, w links.Path, why string) []string {
	rate, latency := w.Rate.String(), fmt.Sprintf("%d µs", w.Latency)
	if w.Closed {
		rate, latency = "closed", "-"
	}
	return []string{from, to, w.Transport, w.Kind.String(), why, rate, latency}
}

// groupTable counts the pairs that use the same path at the same rate, best first, with the reason
// of one of them. It examines equal replicas once: there may be ten thousand.
func (m modelDevices) groupTable() report.Table {
	type group struct {
		transport string
		kind      links.Kind
		rate      links.Rate
	}
	count, example := map[group]int{}, map[group]pairState{}
	add := func(from, to control.Device, n int) {
		if n <= 0 {
			return
		}
		p := newPairState(m.DeviceModel, from, to)
		k := group{p.Path.Transport, p.Path.Kind, p.Path.Rate}
		if count[k] == 0 {
			example[k] = p
		}
		count[k] += n
	}
	all := groupDevices(m.Replicas)
	for i, a := range all {
		for k, b := range all {
			same, apart, pair := 0, 0, [2]control.Device{}
			for _, host := range a.order {
				from, here := a.on[host], len(b.on[host])
				if i == k {
					here-- // a replica forms no pair with itself
				}
				if same += len(from) * here; here > 0 && pair[0].Replica == "" {
					pair = [2]control.Device{from[0], b.on[host][len(b.on[host])-1]}
				}
			}
			add(pair[0], pair[1], same)
			if apart = a.count*b.count - same; i == k {
				apart -= a.count
			}
			if from, to, ok := pairAcrossHosts(a, b); ok {
				add(from, to, apart)
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(count), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(b.rate, a.rate), cmp.Compare(a.transport, b.transport))
	})
	t := report.Table{Title: "paths", Header: []string{"transport", "path", "for example", "reason there", "rate", "latency", "pairs"}, Left: 4, Notes: []string{`"-a" lists every pair.`}}
	for _, k := range keys {
		p := example[k]
		t.Rows = append(t.Rows, []string{k.transport, k.kind.String(), fmt.Sprintf("%s → %s", p.From, p.To), pairReason(p), k.rate.String(), fmt.Sprintf("%d µs", p.Path.Latency), fmt.Sprint(count[k])})
	}
	return t
}

// deviceGroup is a group of equal replicas, by host.
type deviceGroup struct {
	on    map[string][]control.Device
	order []string // hosts
	count int
}

// groupDevices groups replicas by their topology and transports.
func groupDevices(list []control.Device) []*deviceGroup {
	by, out := map[string]*deviceGroup{}, []*deviceGroup(nil)
	for _, r := range list {
		key := r.Topology.Class()
		for _, t := range r.Transports {
			if t.Peer == "" {
				key += "\n" + t.Name + " " + t.State
			}
		}
		l := by[key]
		if l == nil {
			l = &deviceGroup{on: map[string][]control.Device{}}
			by[key], out = l, append(out, l)
		}
		if len(l.on[r.Topology.Host]) == 0 {
			l.order = append(l.order, r.Topology.Host)
		}
		l.on[r.Topology.Host] = append(l.on[r.Topology.Host], r)
		l.count++
	}
	return out
}

// pairAcrossHosts returns one replica of each group such that they are on different hosts, if there
// is such a pair.
func pairAcrossHosts(a, b *deviceGroup) (from, to control.Device, ok bool) {
	for _, x := range a.order[:min(2, len(a.order))] {
		for _, y := range b.order[:min(2, len(b.order))] {
			if x != y {
				return a.on[x][0], b.on[y][0], true
			}
		}
	}
	return from, to, false
}
