package config

import (
	"fmt"
	"path/filepath"
)

// The values of Migration.Mode.
const (
	MigrationLive     = "live"
	MigrationReprompt = "reprompt"
	MigrationOff      = "off"
)

// SampleAll as Migration.Sample asks every candidate.
const SampleAll = -1

// Bounds of a migration's numbers.
const (
	maxConcurrent = 256
	maxSample     = 1024
	maxOutlier    = 10_000 // percent
	minLink       = 0.01   // Gbit/s
	maxLink       = 100_000
	// maxBlocks is the longest path of a Unix socket's directory, in bytes:
	// the kernel takes 107 with the socket's name.
	maxBlocks = 90
)

// Migration says how running requests move between replicas. The zero value
// is right for most fleets. The defaults of preset "paper" are in brackets.
type Migration struct {
	// Mode is "live" (copy the KV blocks while the request decodes, where both
	// engines show their block tables, else re-prompt), "reprompt" (the target
	// always computes the KV anew) or "off" (a request ends where it began; a
	// drain then waits for it). Empty means "live"; for preset "round-robin",
	// the baseline, "off".
	Mode string `yaml:"mode,omitempty"`
	// LinkGbps is the speed of the link into each replica, in Gbit/s, to which
	// transfers between emulated engines are paced at the profile's true bytes;
	// it is multiplied by Speed. Real transfers are as fast as they are. 0 means 400.
	LinkGbps float64 `yaml:"link_gbps,omitempty"`
	// NodeGbps is the speed between replicas of one node, in Gbit/s, where it is
	// above that between nodes and nothing is known of what joins the two: migrators
	// tell of NVLink, PCIe and NICs by themselves, and then that counts, between nodes
	// up to LinkGbps. By these rates the planner prices hand-overs and puts adjacent
	// stages on near replicas, and a seller prefers a near buyer whose load is not above
	// another's by more than the request; preset "paper" knows none of it. 0: nodes of
	// which nothing is known make no difference.
	NodeGbps float64 `yaml:"node_gbps,omitempty"`
	// MaxConcurrent is how many transfers a replica sends at once, and how many it
	// receives, 1 to 256. 0 means 4 [3]. One is a throughput cliff.
	MaxConcurrent int `yaml:"slots,omitempty"`
	// Sample is how many replicas are asked for a bid, up to 1024; −1 asks all,
	// which herds as soon as the fleet is large. 0 means 8 [−1].
	Sample int `yaml:"sample,omitempty"`
	// Select picks among the bids: "least-load", or "paper" (drop the half with
	// the higher load, take the three earliest starts, the first reply of them).
	// Empty means "least-load" [paper].
	Select string `yaml:"select,omitempty"`
	// OutlierPercent is how far above its stage's mean load a replica must be
	// to give requests away. 0 means 25.
	OutlierPercent int `yaml:"outlier_percent,omitempty"`
}

// setDefaults writes the defaults of the preset into empty fields.
func (m *Migration) setDefaults(preset string) {
	mode, slots, sample, pick := MigrationLive, 4, 8, "least-load"
	switch preset {
	case "paper":
		slots, sample, pick = 3, SampleAll, "paper"
	case "round-robin":
		mode = MigrationOff
	}
	setDefault(&m.Mode, mode)
	setDefault(&m.LinkGbps, 400)
	setDefault(&m.MaxConcurrent, slots)
	setDefault(&m.Sample, sample)
	setDefault(&m.Select, pick)
	setDefault(&m.OutlierPercent, 25)
}

func (m Migration) validate(c *checker) {
	checkOneOf(c, "migration.mode", m.Mode, MigrationLive, MigrationReprompt, MigrationOff)
	checkRange(c, "migration.link_gbps", m.LinkGbps, minLink, maxLink)
	if m.NodeGbps != 0 {
		checkRange(c, "migration.node_gbps", m.NodeGbps, minLink, maxLink)
	}
	checkRange(c, "migration.slots", m.MaxConcurrent, 1, maxConcurrent)
	if m.Sample != SampleAll {
		checkRange(c, "migration.sample", m.Sample, 1, maxSample)
	}
	checkOneOf(c, "migration.select", m.Select, "least-load", "paper")
	checkRange(c, "migration.outlier_percent", m.OutlierPercent, 1, maxOutlier)
}

// validateBlocks checks that no two engines serve their block tables in one
// directory.
func (f *Fleet) validateBlocks(c *checker) {
	taken := map[string]string{}
	for i, r := range f.Replicas {
		if r.Blocks == "" {
			continue
		}
		at, dir := fmt.Sprintf("replicas[%d].blocks", i), filepath.Clean(r.Blocks)
		if len(dir) > maxBlocks {
			c.fail(at, "%d bytes are too long for the path of a Unix socket; use at most %d", len(dir), maxBlocks)
		}
		if other := taken[dir]; other != "" {
			c.fail(at, "%s is already %s; every engine needs a directory of its own", r.Blocks, other)
		}
		taken[dir] = at
	}
}
