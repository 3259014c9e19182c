package wiring

import (
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
)

const (
	// minScanPeriod and minSummaryPeriod bound how far a fleet's speed shrinks the
	// periods of the market: they cost real time.
	minScanPeriod    = 20 * time.Millisecond
	minSummaryPeriod = 250 * time.Millisecond
	// A busy host answers late, and is the one whose requests should migrate: these
	// are well above the round trip of a network, and cost time only where a peer
	// has failed without being noticed yet.
	bidTimeout      = policies.Second
	answerTimeout   = 2 * policies.Second
	transferSilence = 3 * policies.Second
	transferLease   = 4 * policies.Second
	freezeLimit     = 2 * policies.Second
	commitTimeout   = 5 * policies.Second
	// bidSample is how many replicas a seller asks for a bid. Asking all of a large
	// fleet makes the sellers herd.
	bidSample = 8
)

// neverSpill is a market.Config.SpillPercent that no replica reaches.
const neverSpill = 101

// placer returns the built-in choice of the replica where a request starts. The paper has none; its requests are placed by thresholds that need no prices.
func (f *Fleet) placer() policies.Placer {
	if f.Preset == config.PresetPaper {
		return place.Policy{}
	}
	return place.Cheapest{}
}

// engine returns what placement counts with at a replica; nil in the paper's preset: it has no prices.
func (f *Fleet) engine(r config.Replica) *place.Engine {
	if f.Preset == config.PresetPaper {
		return nil
	}
	c := f.capacity(r)
	e := &place.Engine{Cost: f.costs(r).Cost, Batch: c.Batch, Chunk: place.DefaultChunk, KV: c.KV}
	if e.Batch <= 0 {
		e.Batch = place.DefaultBatch
	}
	if e.KV <= 0 {
		e.KV = policies.Unbounded
	}
	return e
}

// engineCosts is what the built-in policies count with.
type engineCosts struct {
	policies.Cost
	copied float64 // seconds to copy the KV of a token from another replica; 0: none is copied
}

// costs returns the costs of a replica's engine. Prefixes are copied over a link of migration.link_gbps,
// or else of the profile's rate, with which the planner counts, too; an engine without a block table may
// have no way to copy them.
func (f *Fleet) costs(r config.Replica) engineCosts {
	p := f.profile(r).TensorParallel(r.TP)
	c := engineCosts{Cost: p.Cost()}
	rates, pulls := f.PrefixPull(r)
	if !pulls || r.Blocks == "" {
		return c
	}
	rate := float64(rates.MaxRate)
	if rate == 0 {
		rate = p.LinkRate / f.Speed
	}
	if rate > 0 {
		c.copied = float64(rates.TokenBytes) / rate
	}
	return c
}

// Places reports whether front ends of this fleet place requests by load, and rescue those
// whose engine is lost. Then every replica has a market.
func (f *Fleet) Places() bool { return f.Migration.Mode != config.MigrationOff }

// Migrates reports whether running requests of this fleet migrate.
func (f *Fleet) Migrates() bool { return f.Places() && f.Migration.Mode != config.MigrationPlace }

// Refines reports whether replicas propose boundaries of their stages between two
// plans, as in the paper; only then do policies of kind refine decide anything.
func (f *Fleet) Refines() bool { return f.Preset == config.PresetPaper }

// Blocks returns the directory of the sockets with which a replica's engine serves
// its block table; "" for none.
func (f *Fleet) Blocks(r config.Replica) string { return f.resolvePath(r.Blocks) }

// Connector returns the directory of the socket of the connector of a replica's engine; "" for
// none.
func (f *Fleet) Connector(r config.Replica) string { return f.resolvePath(r.Connector) }

// Market returns the Config of a replica's market, without the components that it
// is connected to.
func (f *Fleet) Market(r config.Replica) market.Config {
	m, _ := f.Model(r.Model)
	p := f.profile(r).TensorParallel(r.TP)
	c := market.Config{
		Self: policies.ReplicaID(r.ID),
		Machine: bidask.Rules{
			Sample: bidSample, MaxConcurrentSends: f.Migration.MaxConcurrent, MaxConcurrentReceives: f.Migration.MaxConcurrent,
			BidTimeout: bidTimeout, AnswerTimeout: answerTimeout,
		},
		KeepRequests:    !f.Migrates(),
		Capacity:        f.capacity(r).KV,
		Detector:        bidask.Detector{Percent: bidask.DefaultPercent},
		Placer:          f.placer(),
		Engine:          f.engine(r),
		CopySeconds:     f.costs(r).copied,
		Reprompt:        f.Migration.Mode == config.MigrationReprompt || r.Blocks == "" && r.Connector == "",
		Prefill:         place.Prefill{},
		QoE:             p.QoEModel(),
		BucketEdges:     f.Edges(m),
		ScanInterval:    max(minScanPeriod, f.scaled(100*time.Millisecond)),
		SummaryInterval: max(minSummaryPeriod, f.scaled(time.Second)),
	}
	if f.Preset == config.PresetPaper {
		c.Machine.Sample, c.Machine.Selector, c.Machine.WaitForPromise = bidask.AskAll, bidask.Paper{}, true
		// A request migrates when its length exceeds its stage's range, and otherwise only
		// from overloaded outliers.
		c.BucketEdges, c.SpillPercent, c.Machine.BalancePercent = nil, neverSpill, 100
	}
	if r.Role == config.RolePrefill {
		c.ScanInterval = minScanPeriod // every token that it generates delays prompts
	}
	if f.Refines() {
		c.Refiner, c.RefineInterval = partition.PaperRefiner{}, max(minScanPeriod, f.scaled(time.Second))
	}
	return c
}

// Executor returns the Config of a replica's migration executor, without the
// components that it is connected to.
func (f *Fleet) Executor(r config.Replica, log *slog.Logger) move.Config {
	return move.Config{
		Self:   policies.ReplicaID(r.ID),
		Limits: move.Limits{PeerTimeout: transferSilence, ReadyTimeout: transferLease, FreezeTimeout: freezeLimit, CommitTimeout: commitTimeout},
		Logger: log,
	}
}

// LinkRate returns the rate, in bytes per second, of the emulated link into each replica.
func (f *Fleet) LinkRate() int64 { return int64(f.Migration.LinkGbps * 1e9 / 8 * f.Speed) }

// PrefixRates are the sizes and rates by which prefix pulls are priced.
type PrefixRates struct {
	TokenBytes policies.Bytes // of KV, as links carry it at the fleet's speed
	MaxRate    links.Rate     // of emulated transfers; 0: not bounded
}

// PrefixPull returns how a replica's front end prices prefix pulls, and false if it pulls none.
func (f *Fleet) PrefixPull(r config.Replica) (PrefixRates, bool) {
	if f.Migration.Mode != config.MigrationLive || f.Migration.PrefixPull == config.PrefixPullOff {
		return PrefixRates{}, false
	}
	rates := PrefixRates{TokenBytes: policies.Bytes(max(1, f.TokenBytes(r)/f.Speed)), MaxRate: gbps(f.Migration.LinkGbps)}
	return rates, true
}
