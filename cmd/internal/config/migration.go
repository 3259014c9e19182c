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
	minLink = 0.01 // Gbit/s
	maxLink = 100_000
	// maxBlocks is the longest path of a Unix socket's directory, in bytes: the
	// kernel allows 107 with the socket's name.
	maxBlocks = 90
)

// Transfers that a replica sends at once, and as many that it receives. With one, throughput collapses.
const (
	concurrentTransfers      = 4
	concurrentTransfersPaper = 3
)

// Migration configures how requests are placed and migrate between replicas. The
// defaults are right for most fleets.
type Migration struct {
	// Mode is "live" (copy the KV blocks while the request decodes, where both engines serve their block tables;
	// else let the engines' KV connectors hand the KV over; else re-prompt), "reprompt" (the target recomputes the
	// KV), "place" (a new request may start on another replica of its stage, and ends where it started) or "off"
	// (a request stays where the proxy sent it). With the last two a drain waits. Except with "off", a request
	// whose engine is lost goes on elsewhere.
	Mode string `yaml:"mode,omitempty" default:"live; off for preset round-robin"`
	// LinkGbps is the rate of the link into each replica, to which transfers between
	// emulated engines are paced at the profile's true bytes; it is multiplied by
	// speed. Real transfers are not paced.
	LinkGbps float64 `yaml:"link_gbps,omitempty" unit:"Gbit/s"`
	// MaxConcurrent is how many transfers a replica sends at once, and how many it receives. Only tests set it.
	MaxConcurrent int `yaml:"-"`
	// PrefixPull is "on" (with mode "live": KV of a prompt's beginning that another replica holds is copied before
	// the first token, where this is predicted to be faster than computing it) or "off", as with preset paper. Only
	// tests set it: the prediction decides.
	PrefixPull string `yaml:"-"`
}

// setDefaults writes the defaults of the preset into empty fields.
func (m *Migration) setDefaults(preset string) {
	mode, concurrent, pull := MigrationLive, concurrentTransfers, PrefixPullOn
	switch preset {
	case PresetPaper:
		concurrent, pull = concurrentTransfersPaper, PrefixPullOff
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
