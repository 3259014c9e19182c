package market

import (
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/place"
)

// Executor executes migrations.
type Executor interface {
	// Execute executes a Reserve, Release, Export, Import or Abort. It must not block.
	// Its results, as package bidask specifies them, go to Market.Notify.
	Execute(bidask.Action)
}

// Network sends envelopes to other migrators.
type Network interface {
	// Send sends or drops an envelope and fills in From and To. It must not block.
	Send(to policies.ReplicaID, e *api.Envelope)
}

// Defaults and limits.
const (
	defaultScan    = 100 * time.Millisecond
	defaultSummary = time.Second
	defaultRefine  = time.Second
	maxMailbox     = 1 << 12 // waiting messages of peers; further ones are dropped
)

// Config configures a Market. Durations are wall-clock time: the caller has divided them
// by the fleet's speed.
type Config struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// Machine configures the market's rules. Self is filled in, and FirstDeal set from the
	// present time if it is 0.
	Machine bidask.Rules
	// Executor and Network execute the machine's actions. Required.
	Executor Executor
	Network  Network
	// Residents returns the requests that run on this replica's engine, as
	// frontend.Server.LocalLegs does. It is called on Run's goroutine, once per scan.
	// Required.
	Residents func() []frontend.LocalLeg
	// Load returns this replica's load. It is called like Residents. Required.
	Load func() policies.Load
	// Capacity is the engine's KV cache in tokens; 0 if unknown: then the replica buys
	// and spills nothing.
	Capacity policies.Tokens
	// Ready reports whether the engine serves requests. While it does not, the replica
	// buys nothing and reports itself as draining. It is called once per scan. nil: always.
	Ready func() bool
	// CanReceive reports whether KV can be written to the engine's memory and the process
	// has resources for another request. While it does not, the replica buys nothing; new
	// requests may still start there. It is called once per scan. nil: always.
	CanReceive func() bool
	// Detector finds outliers, Placer chooses where requests start, Refiner proposes
	// the boundary to the next stage, priced by QoE. nil disables each.
	Detector policies.Detector
	Placer   policies.Placer
	// Prefill chooses the prefill replica that computes a prompt before the request moves
	// here; nil: none, even if there are some.
	Prefill policies.Placer
	Refiner policies.Refiner
	QoE     policies.QoE
	// Prefixes returns which prompts this replica's engine holds, as policies/prefix encodes a
	// Summary, and a number above 0 that is another one when that is; no bytes if the number is
	// known. The market keeps the bytes. It is called on Run's goroutine, once per summary. nil:
	// unknown.
	Prefixes func(known uint64) (encoded []byte, version uint64)
	// Engine is what prices count with, for the Placer; nil: candidates have no prices. CopySeconds is how long the KV
	// of a token is copied from another replica; 0: none is copied.
	Engine      *place.Engine
	CopySeconds float64
	// Reprompt says that the KV of a request that moves is not copied: its new replica computes it.
	Reprompt bool
	// MigrationCost returns the present estimate of how long so many tokens take to a peer over the link between the
	// two; sellers prefer cheap peers. The estimate is called under locks: it takes none, and does no I/O. nil: all
	// peers cost the same.
	MigrationCost func() func(to policies.ReplicaID, length policies.Tokens) policies.Micros
	// BucketEdges and SpillPercent are the fields of bidask.OfferRules.
	BucketEdges  []policies.Tokens
	SpillPercent int
	// KeepRequests makes the replica sell nothing: new requests are placed by load, and run
	// where they began.
	KeepRequests bool
	// ScanInterval is the time between two scans of the residents; 0 means 100 ms.
	ScanInterval time.Duration
	// SummaryInterval is the time between two summaries of this replica's load, each sent to a sample
	// of its peers (place.Peers.SampleNeighbours). It is well below place.MaxAge. 0 means 1 s.
	SummaryInterval time.Duration
	// RefineInterval is the time between two proposals; 0 means 1 s.
	RefineInterval time.Duration
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Self == "":
		return c, errors.New("market: Self must name this replica")
	case c.Executor == nil || c.Network == nil:
		return c, fmt.Errorf("market of %s: Executor and Network are required", c.Self)
	case c.Residents == nil || c.Load == nil:
		return c, fmt.Errorf("market of %s: Residents and Load are required; use the front end's", c.Self)
	case c.Capacity < 0:
		return c, fmt.Errorf("market of %s: Capacity must not be negative", c.Self)
	}
	if c.Refiner != nil {
		if err := c.QoE.Validate(); err != nil {
			return c, fmt.Errorf("market of %s: QoE of the Refiner: %w", c.Self, err)
		}
	}
	for _, d := range [...]struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"ScanInterval", &c.ScanInterval, defaultScan}, {"SummaryInterval", &c.SummaryInterval, defaultSummary},
		{"RefineInterval", &c.RefineInterval, defaultRefine},
	} {
		if *d.value < 0 {
			return c, fmt.Errorf("market of %s: %s %v must not be negative", c.Self, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	if c.Ready == nil {
		c.Ready = func() bool { return true }
	}
	if c.CanReceive == nil {
		c.CanReceive = func() bool { return true }
	}
	if c.Machine.FirstDeal == 0 {
		c.Machine.FirstDeal = uint64(time.Now().UnixMicro())
	}
	return c, nil
}
