package sim

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// The policies of Cascade, beside the routers of package baseline.
const (
	// Cascade has planned stages, placement before the first token by price and cached
	// prefixes, prefix pulls, and the market.
	Cascade = "cascade"
	// OneStage is Cascade without stages.
	OneStage = "one-stage"
	// WithoutMoves is Cascade without the market: no running request migrates.
	WithoutMoves = "without-moves"
	// WithoutPull is Cascade that computes every prefix that a replica lacks.
	WithoutPull = "without-pull"
	// PlacementOnly is Cascade that only decides where a request starts: it moves nothing and pulls nothing.
	PlacementOnly = "placement-only"
	// WithoutRanges is Cascade whose prefill replicas compute prompts of all lengths alike.
	WithoutRanges = "without-ranges"
	// WithoutTokenizer is Cascade whose front ends know the tokens of a prompt only if they have served its text, as
	// where engines have no /tokenize: to other front ends, a conversation's next turn is new.
	WithoutTokenizer = "without-tokenizer"
	// WithoutAffinity is Cascade that knows nothing of the prefixes that replicas have cached.
	WithoutAffinity = "without-affinity"
	// WithoutForwards is Cascade whose prompts are computed where a proxy sent them.
	WithoutForwards = "without-forwards"
	// ByGain is Cascade that is divided into stages for a predicted gain (planner.adopt: gain), not only when one stage
	// is over its limits.
	ByGain = "by-gain"
	// StaticSplit is WithoutMoves with the first planned stages for ever: a static split by length, as
	// operators make it of a trace (research calls it SITA: size interval task assignment).
	StaticSplit = "static-split"
	// Ideal sends each request where it costs least, by the present state of each replica: one decider that knows
	// all at once. It has no stages, and moves nothing. Clairvoyant is Ideal that knows how many tokens each
	// request will generate. They are what placement at arrival could reach at most.
	Ideal       = "ideal"
	Clairvoyant = "clairvoyant"
	// Paper is "preset: paper": plans from the requests of a minute, every one adopted, boundaries
	// refined each second, and the market as published.
	Paper = "paper"
	// NoPipeline and Chain are Paper in the layouts that the paper compares with (section "Length-aware
	// vs. naïve stage partitioning"): all replicas in one stage, and one replica for each stage, as far
	// as a plan may have stages. The chain is made once, of the first requests; then it is refined.
	NoPipeline = "no-pipeline"
	Chain      = "chain"
	// RefineQuantity and RefineMemory are Paper with the boundaries that the paper compares with
	// (section "Adaptive vs. naïve range-refinement policies").
	RefineQuantity = "refine-quantity"
	RefineMemory   = "refine-memory"
	// GrowthOnly and GrowthRandom are Paper with less balance (section "The load-balancing effect of
	// bid-ask protocol"): requests only move to the next stage, by bids; or no load counts, neither for
	// the proxies nor for front ends, and they move to any replica of the next stage.
	GrowthOnly   = "growth-only"
	GrowthRandom = "growth-random"
)

// variants are the parts of Cascade that each policy has.
var variants = map[string]variant{
	Cascade:         {planner: planner.PolicyDefault, market: true, priced: true, affinity: true, pull: true},
	OneStage:        {planner: planner.PolicyRoundRobin, market: true, priced: true, affinity: true, pull: true},
	WithoutMoves:    {planner: planner.PolicyDefault, priced: true, affinity: true, pull: true},
	WithoutPull:     {planner: planner.PolicyDefault, market: true, priced: true, affinity: true},
	PlacementOnly:   {planner: planner.PolicyDefault, priced: true, affinity: true},
	WithoutRanges:   {planner: planner.PolicyDefault, market: true, priced: true, affinity: true, pull: true, allLengths: true},
	WithoutAffinity: {planner: planner.PolicyDefault, market: true, priced: true},
	WithoutForwards: {planner: planner.PolicyDefault, market: true, priced: true, affinity: true, pull: true, stay: true},

	WithoutTokenizer: {planner: planner.PolicyDefault, market: true, priced: true, affinity: true, pull: true, ownTexts: true},

	ByGain:      {planner: planner.PolicyDefault, market: true, priced: true, affinity: true, pull: true, byGain: true},
	StaticSplit: {planner: planner.PolicyDefault, static: true},
	Ideal:       {planner: planner.PolicyRoundRobin, affinity: true, pull: true, knows: exactStates},
	Clairvoyant: {planner: planner.PolicyRoundRobin, affinity: true, pull: true, knows: exactOutputs},
	Paper:       {planner: planner.PolicyPaper, market: true, paper: true},

	NoPipeline:     {planner: planner.PolicyRoundRobin, market: true, paper: true},
	Chain:          {planner: planner.PolicyPaper, market: true, paper: true, chain: true},
	RefineQuantity: {planner: planner.PolicyPaper, market: true, paper: true, refiner: partition.Quantity{}},
	RefineMemory:   {planner: planner.PolicyPaper, market: true, paper: true, refiner: partition.Memory{}},
	GrowthOnly:     {planner: planner.PolicyPaper, market: true, paper: true, growthOnly: true},
	GrowthRandom:   {planner: planner.PolicyPaper, market: true, paper: true, growthOnly: true, blind: true},
}

type variant struct {
	planner    string
	market     bool // running requests are sold
	static     bool // no plan follows the first stages
	paper      bool
	chain      bool             // one replica for each stage
	refiner    policies.Refiner // of the paper's policies; nil: the paper's
	growthOnly bool             // no replica sells because it has more than others
	priced     bool             // requests are placed by price (place.Cheapest)
	byGain     bool             // and yet the fleet is divided for a predicted gain
	affinity   bool             // placement knows what is cached
	ownTexts   bool             // a front end knows only the prompts that it has served
	pull       bool             // prefixes are copied from their holders
	allLengths bool             // of prompts, at every prefill replica
	stay       bool             // prompts are not forwarded
	knows      knowledge        // of a decider by price; 0: there is none
	blind      bool             // no load counts, and one random replica is asked to buy
}

// perOctave is how finely lengths are counted.
func (v variant) perOctave() int {
	if v.paper {
		return 1
	}
	return bucketsPerOctave
}

// marketOf returns the settings of a replica's part in the market, in one of its lives.
func (v variant) marketOf(self policies.ReplicaID, peers bidask.Peers, edges []policies.Tokens, seed uint64, life uint32) bidask.TraderConfig {
	c := bidask.TraderConfig{
		OfferRules: bidask.OfferRules{Self: self, BucketEdges: edges}, Peers: peers, Seed: seed,
		Machine: bidask.Rules{FirstDeal: uint64(life)<<32 + 1, Sample: sampleSize, BidTimeout: bidTimeout, AnswerTimeout: answerTimeout},
	}
	if v.paper {
		c.Machine.Sample, c.Machine.Selector, c.Machine.WaitForPromise = bidask.AskAll, bidask.Paper{}, true
		c.Machine.MaxConcurrentSends, c.Machine.MaxConcurrentReceives = 3, 3
		c.Detector, c.BucketEdges, c.SpillPercent = bidask.Detector{Percent: bidask.DefaultPercent}, nil, neverSpill
		c.Machine.BalancePercent = 100
	}
	if v.growthOnly {
		c.Detector = nil
	}
	if v.blind {
		c.Machine.Sample = 1
	}
	return c
}

// Policies lists what Config.Policy may be.
func Policies() []string {
	return append(baseline.Names(), Cascade, OneStage, WithoutMoves, WithoutPull, PlacementOnly, WithoutTokenizer, WithoutRanges,
		WithoutAffinity, WithoutForwards, ByGain, StaticSplit, Ideal, Clairvoyant, Paper, NoPipeline, Chain, RefineQuantity, RefineMemory,
		GrowthOnly, GrowthRandom)
}

// isCascade reports whether a policy is one of Cascade's.
func isCascade(policy string) bool {
	_, ok := variants[policy]
	return ok
}

// HasStages reports whether the stages of a policy can be configured: of Cascade's policies with stages
// but the chain.
func HasStages(policy string) bool {
	return isCascade(policy) && policy != OneStage && policy != NoPipeline && policy != Chain && variants[policy].knows == 0
}

// mayPrefill reports whether a policy's replicas may be prefill replicas: their requests must be able to
// leave.
func mayPrefill(policy string) bool {
	v := variants[policy]
	return policy == prefillDecode || v.market && !v.paper && !v.stay
}

// The settings of production (cmd/internal/wiring), at speed 1.
const (
	bucketsPerOctave                    = 4
	maxContext          policies.Tokens = 131_072
	flowWindow                          = 45 * time.Second
	scanInterval                        = 100 * time.Millisecond
	prefillScanInterval                 = 20 * time.Millisecond // every token that a prefill replica generates delays prompts
	summaryInterval                     = time.Second
	sampleSize                          = 8
	neverSpill                          = 101 // percent
	bidTimeout                          = policies.Second
	answerTimeout                       = 2 * policies.Second
	messageDelay                        = time.Millisecond // of the market's messages
	modelName                           = "simulated"
)
