package market

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/internal/loadview"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Executor moves requests.
type Executor interface {
	// Execute carries out a Reserve, Release, Export, Import or Abort. It must not
	// block. It answers as package bidask says, by Market.Tell, now or later.
	Execute(bidask.Action)
}

// Network carries envelopes to other migrators.
type Network interface {
	// Send passes an envelope on, or drops it. It must not block, and fills in
	// From and To.
	Send(to policies.ReplicaID, e *api.Envelope)
}

// The defaults and bounds.
const (
	defaultScan    = 100 * time.Millisecond
	defaultSummary = time.Second
	defaultRefine  = time.Second
	defaultOffers  = 16
	maxMailbox     = 1 << 12 // messages of peers that wait to be looked at
	maxSequences   = 1 << 14 // that stand for the next stage when refining
)

// Config is what a Market needs. Durations are of the wall clock: the caller
// has divided them by the fleet's speed.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// Machine sets the market's rules. Its Self is filled in, and its First by
	// the time of New where it is 0.
	Machine bidask.Config
	// Executor and Network do what the machine says. Required.
	Executor Executor
	Network  Network
	// Residents returns what runs on the own engine; Front.Residents does. It is
	// called on Run's goroutine, once a scan. Required.
	Residents func() []frontend.LocalLeg
	// Load returns the own load. It is called like Residents. Required.
	Load func() policies.Load
	// Capacity is the engine's KV cache in tokens; 0 while it is unknown: the
	// replica buys nothing and spills nothing then.
	Capacity policies.Tokens
	// Ready reports whether the engine serves; while it does not, the replica
	// buys nothing and says so. It is called once a scan. nil: always.
	Ready func() bool
	// CanReceive reports whether KV can be put into the engine's memory; while it cannot,
	// the replica buys nothing. New requests may begin there all the same. It is called
	// once a scan. nil: always.
	CanReceive func() bool
	// Detector finds outliers, Placer says where requests begin, Refiner where
	// the boundary to the next stage should lie, by Cost. nil switches each off.
	Detector policies.Detector
	Placer   policies.Placer
	Refiner  policies.Refiner
	Cost     policies.Cost
	// MigrationCost is what moving so many tokens to a peer takes by the links between
	// the two, where that differs: sellers prefer near peers. It is pure. nil: all
	// are alike.
	MigrationCost func(to policies.ReplicaID, length policies.Tokens) policies.Micros
	// BucketEdges, Rest and Full are those of offer.Config.
	BucketEdges  []policies.Tokens
	Cooldown     time.Duration
	SpillPercent int
	// MaxOffers bounds what is for sale at a time. More than the slots keep the
	// market busy while transfers run. 0 means 16.
	MaxOffers int
	// ScanInterval is the time between two looks at the residents; 0 means 100 ms.
	ScanInterval time.Duration
	// SummaryInterval is the time between two summaries of the own load, each to
	// Sample peers drawn anew. Fresh is how old a peer's may be to count: a few
	// times as long. 0 means 1 s, 8 and 3 s.
	SummaryInterval, SummaryMaxAge time.Duration
	SampleSize                     int
	// RefineInterval is the time between two proposals; 0 means 1 s.
	RefineInterval time.Duration
	// Seed makes the draws repeatable.
	Seed uint64
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Self == "":
		return c, errors.New("market: Self must name the own replica")
	case c.Executor == nil || c.Network == nil:
		return c, fmt.Errorf("market of %s: Mover and Network must not be nil; say who moves requests and who carries messages", c.Self)
	case c.Residents == nil || c.Load == nil:
		return c, fmt.Errorf("market of %s: Residents and Load must not be nil; give it the front's", c.Self)
	case c.Capacity < 0 || c.MaxOffers < 0 || c.SampleSize < 0:
		return c, fmt.Errorf("market of %s: Capacity, Offers and Sample must not be negative", c.Self)
	}
	if c.Refiner != nil {
		if err := c.Cost.Validate(); err != nil {
			return c, fmt.Errorf("market of %s: Cost, for the Refiner: %w", c.Self, err)
		}
	}
	for _, d := range [...]struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"Scan", &c.ScanInterval, defaultScan}, {"SummaryEvery", &c.SummaryInterval, defaultSummary}, {"RefineEvery", &c.RefineInterval, defaultRefine},
		{"Fresh", &c.SummaryMaxAge, 0}, {"Rest", &c.Cooldown, 0}, // the packages that use them have defaults
	} {
		if *d.value < 0 {
			return c, fmt.Errorf("market of %s: %s %v must not be negative", c.Self, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	if c.MaxOffers == 0 {
		c.MaxOffers = defaultOffers
	}
	if c.SampleSize == 0 {
		c.SampleSize = loadview.DefaultSampleSize
	}
	if c.Ready == nil {
		c.Ready = func() bool { return true }
	}
	if c.CanReceive == nil {
		c.CanReceive = func() bool { return true }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Machine.Self = c.Self
	if c.Machine.FirstDeal == 0 {
		c.Machine.FirstDeal = uint64(time.Now().UnixMicro())
	}
	return c, nil
}
