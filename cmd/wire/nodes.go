package wire

import (
	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies"
)

// Nodes make a difference where the fleet file says how fast one is within itself
// (migration.node_gbps), and where that is faster than what is between them. The
// preset "paper" knows no nodes.

// bytesPerSecond is a rate of Gbit/s.
func bytesPerSecond(gbps float64) float64 { return gbps * 1e9 / 8 }

// near is the rate inside a node, 0 where nodes make no difference.
func (f *Fleet) near() float64 {
	if f.Preset == "paper" {
		return 0
	}
	return bytesPerSecond(f.Migration.NodeGbps)
}

// distance is what a replica's market knows of its peers: how long a transfer to
// each takes. Replicas that the file does not name are on other nodes.
func (f *Fleet) distance(r config.Replica) func(policies.ReplicaID, policies.Tokens) policies.Micros {
	near, far := f.near(), bytesPerSecond(f.Migration.LinkGbps)
	if near <= far {
		return nil
	}
	here := make(map[policies.ReplicaID]bool)
	for _, o := range f.Fleet.Replicas {
		here[policies.ReplicaID(o.ID)] = o.Node == r.Node
	}
	perToken := float64(f.profile(r).KVBytesPerToken) * 1e6 // microseconds at one byte per second
	return func(to policies.ReplicaID, length policies.Tokens) policies.Micros {
		rate := far
		if here[to] {
			rate = near
		}
		return policies.Micros(float64(length) * perToken / rate)
	}
}

// transfer prices a hand-over for the planner: by the profile, but for the share
// of replicas that have another one of the model on their node, by the node's
// rate. Stages are spread over the nodes and sellers prefer near buyers, so that
// these hand-overs mostly stay there.
func (f *Fleet) transfer(model string, p cost.Profile) policies.Transfer {
	t := p.Transfer()
	near := f.near()
	if near == 0 || p.LinkRate <= 0 || near <= p.LinkRate {
		return t
	}
	on, all, paired := make(map[string]int), 0, 0
	for _, r := range f.Fleet.Replicas {
		if r.Model == model && !r.Drain {
			on[r.Node]++
			all++
		}
	}
	for _, n := range on {
		if n > 1 {
			paired += n
		}
	}
	if all == 0 {
		return t
	}
	share := float64(paired) / float64(all)
	t.PerToken = float64(share*float64(p.KVBytesPerToken)/near) + float64((1-share)*t.PerToken)
	return t
}
