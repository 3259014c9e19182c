package wiring

import (
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/refine"
)

const (
	// minScanPeriod and fastestSummary bound how far a fleet's speed may shrink
	// the market's periods: they cost real time.
	minScanPeriod    = 20 * time.Millisecond
	minSummaryPeriod = 250 * time.Millisecond
	// A machine that is busy answers late, and is the one whose requests should
	// move: these are well above the round trip of a network, and cost time only
	// where a peer has died and nobody knows yet.
	bidTimeout      = policies.Second
	answerTimeout   = 2 * policies.Second
	transferSilence = 3 * policies.Second
	transferLease   = 4 * policies.Second
	freezeLimit     = 2 * policies.Second
	commitTimeout   = 5 * policies.Second
	// minExcess is the smallest excess, in tokens, for which a replica sells
	// requests inside its stage: below, every request makes an outlier.
	minExcess policies.Tokens = 4096
)

// Migrates reports whether requests of this fleet move.
func (f *Fleet) Migrates() bool { return f.Migration.Mode != config.MigrationOff }

// Refines reports whether replicas propose where the boundaries of their stages
// should lie, so that policies of kind refine decide anything.
func (f *Fleet) Refines() bool { return f.Planner.Refine == config.RefineOn }

// builtinRefiner is the built-in one of the preset.
func (f *Fleet) builtinRefiner() policies.Refiner {
	if f.Preset == "paper" {
		return refine.Paper{}
	}
	return refine.Weighted{}
}

// Blocks is the directory of the sockets with which a replica's engine shows
// its block table, "" for none.
func (f *Fleet) Blocks(r config.Replica) string { return f.resolvePath(r.Blocks) }

// Market is the Config of one replica's part in the market, without the parts
// that it is joined to.
func (f *Fleet) Market(r config.Replica, log *slog.Logger) market.Config {
	m, _ := f.Model(r.Model)
	p := f.profile(r).TensorParallel(r.TP)
	c := market.Config{
		Self: policies.ReplicaID(r.ID),
		Machine: bidask.Config{
			Sample: f.Migration.Sample, MaxConcurrentSends: f.Migration.MaxConcurrent, MaxConcurrentReceives: f.Migration.MaxConcurrent,
			BidTimeout: bidTimeout, AnswerTimeout: answerTimeout,
		},
		Capacity:        f.capacity(r).KV,
		Detector:        outlier.Detector{Percent: f.Migration.OutlierPercent, MinExcess: minExcess},
		Placer:          place.Policy{},
		Cost:            p.Cost(),
		BucketEdges:     Edges(m),
		ScanInterval:    max(minScanPeriod, f.scaled(100*time.Millisecond)),
		SummaryInterval: max(minSummaryPeriod, f.scaled(time.Second)),
		Logger:          log,
	}
	if f.Migration.Sample == config.SampleAll {
		c.Machine.Sample = bidask.AskAll
	}
	if f.Migration.Select == "paper" {
		c.Machine.Selector = bidask.Paper{}
	}
	if f.Refines() {
		c.Refiner, c.RefineInterval = f.builtinRefiner(), max(minScanPeriod, f.scaled(time.Second))
	}
	return c
}

// Executor is the Config of one replica's mover, without the parts that it is
// joined to.
func (f *Fleet) Executor(r config.Replica, log *slog.Logger) executor.Config {
	return executor.Config{
		Self:     policies.ReplicaID(r.ID),
		LinkRate: int64(f.Migration.LinkGbps * 1e9 / 8 * f.Speed),
		Transfer: transfer.Config{PeerTimeout: transferSilence, ReadyTimeout: transferLease, FreezeTimeout: freezeLimit, CommitTimeout: commitTimeout},
		Logger:   log,
	}
}
