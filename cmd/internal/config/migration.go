package config

import (
	"fmt"
	"path/filepath"
)

// The values of Migration.Mode.
const (
	MigrationLive     = "live"
	MigrationReprompt = "reprompt"
	MigrationPlace    = "place"
	MigrationOff      = "off"
)

// The values of Migration.PrefixPull.
const (
	PrefixPullOn  = "on"
	PrefixPullOff = "off"
)

// Bounds of a migration's numbers.
const (
	maxConcurrent = 256
	minLink       = 0.01 // Gbit/s
	maxLink       = 100_000
	// maxBlocks is the longest path of a Unix socket's directory, in bytes: the
	// kernel allows 107 with the socket's name.
	maxBlocks = 90
)

// Migration configures how requests are placed and migrate between replicas. The
// defaults are right for most fleets.
type Migration struct {
	// Mode is "live" (copy the KV blocks while the request decodes, where both engines
	// serve their block tables; else let the engines hand the KV over, where both have a
	// KV connector, as vLLM has with --kv-transfer-config; else re-prompt), "reprompt" (the target
	// always recomputes the KV), "place" (a new request starts on another replica
	// of its stage where the queue is shorter or the prefix is cached, and ends where it
	// started; a drain waits for it) or "off" (a request stays where the proxy sent it,
	// whatever the load there; a drain waits for it). Except with "off", a request whose
	// engine is lost goes on elsewhere.
	Mode string `yaml:"mode,omitempty" default:"live; off for preset round-robin"`
	// LinkGbps is the rate of the link into each replica, to which transfers between
	// emulated engines are paced at the profile's true bytes; it is multiplied by
	// speed. Real transfers are not paced.
	LinkGbps float64 `yaml:"link_gbps,omitempty" unit:"Gbit/s"`
	// HostGbps is the rate between replicas on one host where it is above the rate
	// between hosts and the links between the two are unknown: migrators report
	// NVLink, PCIe and NICs by themselves, and those rates take precedence, between
	// hosts up to link_gbps. By these rates the planner prices migrations and gives
	// adjacent stages to near replicas, and a seller prefers a near buyer whose load
	// exceeds another's by no more than the request. Preset "paper" ignores all
	// rates. Without it, unknown links within a host count as links between hosts.
	HostGbps float64 `yaml:"host_gbps,omitempty" unit:"Gbit/s"`
	// MaxConcurrent is how many transfers a replica sends at once, and how many it
	// receives, 1 to 256. With 1, throughput collapses.
	MaxConcurrent int `yaml:"max_concurrent,omitempty" unit:"transfers" default:"4; 3 for preset paper"`
	// PrefixPull is "on" (with mode "live": a request whose prompt begins as one whose KV
	// another replica holds gets that KV copied before its first token, where this is
	// predicted to be faster than computing it; it never waits for longer than computing
	// would take) or "off".
	PrefixPull string `yaml:"prefix_pull,omitempty" default:"on; off for preset paper"`
}

// setDefaults writes the defaults of the preset into empty fields.
func (m *Migration) setDefaults(preset string) {
	mode, concurrent, pull := MigrationLive, 4, PrefixPullOn
	switch preset {
	case PresetPaper:
		concurrent, pull = 3, PrefixPullOff
	case PresetRoundRobin:
		mode = MigrationOff
	}
	setDefault(&m.Mode, mode)
	setDefault(&m.LinkGbps, 400)
	setDefault(&m.MaxConcurrent, concurrent)
	setDefault(&m.PrefixPull, pull)
}

func (m Migration) validate(c *checker) {
	checkOneOf(c, "migration.mode", m.Mode, MigrationLive, MigrationReprompt, MigrationPlace, MigrationOff)
	checkRange(c, "migration.link_gbps", m.LinkGbps, minLink, maxLink)
	if m.HostGbps != 0 {
		checkRange(c, "migration.host_gbps", m.HostGbps, minLink, maxLink)
	}
	checkOneOf(c, "migration.prefix_pull", m.PrefixPull, PrefixPullOn, PrefixPullOff)
	checkRange(c, "migration.max_concurrent", m.MaxConcurrent, 1, maxConcurrent)
}

// validateSocketDirs checks that no two engines have their sockets in one directory.
func (f *Fleet) validateSocketDirs(c *checker) {
	taken := map[string]string{}
	for i, r := range f.Replicas {
		if r.Blocks != "" && r.Connector != "" {
			c.fail(fmt.Sprintf("replicas[%d].connector", i), "the engine has blocks, too; an engine either serves its block table or keeps its own KV cache: remove one of the two")
		}
		for _, d := range [...]struct{ field, dir string }{{"blocks", r.Blocks}, {"connector", r.Connector}} {
			if d.dir == "" {
				continue
			}
			at, dir := fmt.Sprintf("replicas[%d].%s", i, d.field), filepath.Clean(d.dir)
			if len(dir) > maxBlocks {
				c.fail(at, "%d bytes exceed the %d that the path of a Unix socket leaves for its directory; use a shorter path", len(dir), maxBlocks)
			}
			if other := taken[dir]; other != "" {
				c.fail(at, "%s is also %s; every engine needs a directory of its own", d.dir, other)
			}
			taken[dir] = at
		}
	}
}
