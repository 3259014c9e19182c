package client

import (
	"time"

	"google.golang.org/protobuf/types/known/anypb"
)

// Snapshot is everything that a data plane needs at one moment. It and everything it
// points to is immutable; two snapshots share unchanged parts, so a reader can find
// changes by comparing pointers.
type Snapshot struct {
	Listeners map[string]*Listener // warmed ones, by name
	Routes    map[string]*RouteTable
	Clusters  map[string]*Cluster // warmed ones, by name
	// Assignments are the endpoints by Cluster.EDSName. A cluster whose wait timed out has
	// none here and counts as empty.
	Assignments map[string]*Assignment
	Extensions  map[string]*Extension // what fills the Slots of listeners, by name
	// Slots are the configs of Config.Slots that the server has sent, by name.
	Slots map[string]*SlotConfig
}

// Assignment returns the endpoints of a cluster, nil when it has none.
func (s *Snapshot) Assignment(c *Cluster) *Assignment {
	if c.Inline != nil {
		return c.Inline
	}
	return s.Assignments[c.EDSName]
}

// SlotConfig is the config of one of Config.Slots.
type SlotConfig struct {
	Name    string
	Version string
	Config  *anypb.Any // passed CheckSlot
}

// Limits of what the client accepts from a server.
const (
	// MaxMessage is the largest response, in bytes. A CLA of 10,000 endpoints
	// with metadata is about 3 MiB.
	MaxMessage = 64 << 20
	// MaxSlots is how many names Config.Slots may have.
	MaxSlots = 64
	// DefaultFetchTimeout is how long the client waits for a missing resource before it
	// continues without it: Envoy's initial_fetch_timeout.
	DefaultFetchTimeout = 15 * time.Second
)
