package wiring

import (
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// How far replicas are from each other is what their migrators tell of links; the
// fleet file has the rates where nothing is told: migration.node_gbps on a node, where
// it is faster than what is between nodes. The preset "paper" knows none of it.

// UsesDistance reports whether distances between replicas make a difference.
func (f *Fleet) UsesDistance() bool { return f.Preset != "paper" }

// gbps is a rate of Gbit/s.
func gbps(x float64) links.Rate { return links.Rate(x * float64(links.Gigabit)) }

// Links are the rates of the links of which nothing is known, and the most that one
// between nodes is taken for.
func (f *Fleet) Links() links.Rates {
	between := gbps(f.Migration.LinkGbps)
	return links.Rates{SameHost: max(between, gbps(f.Migration.NodeGbps)), BetweenHosts: between, MaxBetweenHosts: between}
}

// TokenBytes is the KV of one token of a replica.
func (f *Fleet) TokenBytes(r config.Replica) float64 {
	return float64(f.profile(r).TensorParallel(r.TP).KVBytesPerToken)
}

// setLinks has the planner price hand-overs by links, which carry KV at the fleet's
// speed. Where nothing is known of them, the profile has the rate between nodes.
func (f *Fleet) setLinks(m *fleet.Model, p cost.Profile) {
	if !f.UsesDistance() || p.LinkRate <= 0 {
		return
	}
	m.TokenBytes, m.Links = float64(p.KVBytesPerToken)/f.Speed, f.Links()
	m.Links.BetweenHosts = links.Rate(p.LinkRate / f.Speed)
	m.Links.SameHost = max(m.Links.BetweenHosts, gbps(f.Migration.NodeGbps))
}
