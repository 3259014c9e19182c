package wiring

import (
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

// Migrators report the links between replicas. The fleet file has the rate of
// unknown links: migration.link_gbps. The preset "paper" ignores all of them.

// UsesDistance reports whether policies consider the links between replicas.
func (f *Fleet) UsesDistance() bool { return f.Preset != "paper" }

// gbps returns a rate of x Gbit/s.
func gbps(x float64) links.Rate { return links.Rate(x * float64(links.Gigabit)) }

// Links returns the rates of unknown links, and the bound of the rates between
// hosts.
func (f *Fleet) Links() links.Rates {
	between := gbps(f.Migration.LinkGbps)
	return links.Rates{SameHost: between, BetweenHosts: between, MaxBetweenHosts: between}
}

// TokenBytes returns the size of the KV of one token of a replica.
func (f *Fleet) TokenBytes(r config.Replica) float64 {
	return float64(f.profile(r).TensorParallel(r.TP).KVBytesPerToken)
}

// setLinks makes the planner price migrations by links, which carry KV at the
// fleet's speed. The profile has the rate of unknown links between hosts.
func (f *Fleet) setLinks(m *fleet.Model, p cost.Profile) {
	if !f.UsesDistance() || p.LinkRate <= 0 {
		return
	}
	m.TokenBytes, m.Links = float64(p.KVBytesPerToken)/f.Speed, f.Links()
	m.Links.BetweenHosts = links.Rate(p.LinkRate / f.Speed)
	m.Links.SameHost = m.Links.BetweenHosts
}
