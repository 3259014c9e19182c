package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/baseline"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// Defaults and limits of a Config.
const (
	DefaultReportInterval = time.Second
	DefaultHealthDelay    = 2 * time.Second

	defaultBlockTokens   = 16
	maxKVTokens          = 1 << 30 // what the scheduler's block numbers can count, and to spare
	defaultBatchedTokens = 8192
	maxReplicas          = 10_000
	maxProxies           = 1_000
)

// prefillDecode is the name of baseline.PrefillDecode.
const prefillDecode = "prefill-decode"

// Config configures a simulation. Replicas, Profile, Policy and Source are required.
type Config struct {
	Name     string // of the run, in tables; empty means the policy's
	Replicas int
	// Profile is one replica's, on all its ranks.
	Profile cost.Profile
	// Attention is what batches of unequal lengths cost; Skew is required for cost.MeasuredSkew.
	Attention cost.AttentionCase
	Skew      *cost.SkewTable
	// Stress is the share that cost.Stress pays, at most 1; 0 means cost.DefaultStress.
	Stress float64

	// KVTokens, MaxBatch and MaxBatchedTokens are the engine's limits, as in emulator.Config; 0 means
	// the profile's, the profile's and 8192.
	KVTokens         policies.Tokens
	MaxBatch         int
	MaxBatchedTokens int
	NoPrefixCache    bool

	// Policy is one of Policies.
	Policy string
	// Stages are the stages of Cascade's policies, by cuts and counts, for ever; without counts they are
	// planned.
	Stages policies.Partition
	// Admission lets Cascade's front ends refuse requests that would wait for too long, as in production.
	// Routers and other schedulers admit all, and refuse the setting.
	Admission bool
	// Proxies is the number of proxies in front of the fleet, each with a router of its own that knows
	// only what it sent; requests come to a random one. 0 means 1. Cascade's pick by weights, which need
	// no count.
	Proxies int
	// PrefillReplicas is how many replicas, the first ones, compute prompts only: for the policy
	// "prefill-decode", where 0 means baseline.DefaultPrefillReplicas, and those of Cascade's that sell
	// requests, but the paper's.
	PrefillReplicas int
	// ReportInterval is the time between two reports of the replicas' loads, and ReportDelay the time
	// until they reach the proxies, at most ReportInterval. 0 means DefaultReportInterval and none.
	ReportInterval, ReportDelay time.Duration
	// HealthDelay is the time until the proxies notice that a replica failed or is back. 0 means
	// DefaultHealthDelay.
	HealthDelay time.Duration
	Faults      []Fault

	// IterationRatio is the planner's, for the policies of Cascade but Paper; 0 means planner.DefaultIterationRatio,
	// below 0 none.
	IterationRatio float64
	// Slack is what the planner gives up for fewer stages, as a share of the least cost, for the policies of
	// Cascade that plan by planner.PolicyDefault; 0 means partition.DefaultSlack, below 0 none. At most 1.
	Slack float64

	// Source yields the requests in order of arrival.
	Source trace.Source
	// Seed decides everything random.
	Seed uint64
	// Record is called with every request that has ended, and must not keep it; nil for none.
	Record func(*replay.Record)
	// Inspect is called every InspectInterval for each replica that runs requests, with their present
	// lengths, and must not keep them; nil for none. InspectInterval is then required.
	Inspect         func(replica int, lengths []policies.Tokens)
	InspectInterval time.Duration
	// Progress is called every progressEvery events and at the end; nil for none.
	Progress func(Progress)
}

// Progress is the state of a run.
type Progress struct {
	Arrived, Ended uint64
	Virtual        time.Duration
}

func (c Config) withDefaults() Config {
	c.Name = cmp.Or(c.Name, c.Policy)
	c.KVTokens = cmp.Or(c.KVTokens, c.Profile.KVTokens)
	c.MaxBatch = cmp.Or(c.MaxBatch, c.Profile.MaxBatch)
	c.MaxBatchedTokens = max(cmp.Or(c.MaxBatchedTokens, defaultBatchedTokens), c.MaxBatch)
	c.Proxies = cmp.Or(c.Proxies, 1)
	c.Stress = cmp.Or(c.Stress, cost.DefaultStress)
	if c.Policy == prefillDecode {
		c.PrefillReplicas = cmp.Or(c.PrefillReplicas, baseline.DefaultPrefillReplicas(c.Replicas))
	}
	c.ReportInterval = cmp.Or(c.ReportInterval, DefaultReportInterval)
	c.IterationRatio = max(0, cmp.Or(c.IterationRatio, planner.DefaultIterationRatio))
	c.HealthDelay = cmp.Or(c.HealthDelay, DefaultHealthDelay)
	return c
}

// attentionName names the case, with the share of cost.Stress where it is not the default.
func (c *Config) attentionName() string {
	if c.Attention == cost.Stress && c.Stress != cost.DefaultStress {
		return fmt.Sprintf("%s:%g", c.Attention, c.Stress)
	}
	return c.Attention.String()
}

// Validate checks everything but the Source, before a caller opens one. The error names the field.
func (c Config) Validate() error { return c.withDefaults().validate() }

// validate checks a Config after its defaults are filled in.
func (c Config) validate() error {
	switch {
	case c.Replicas < 1 || c.Replicas > maxReplicas:
		return fmt.Errorf("simulate: %d replicas; give 1 … %d", c.Replicas, maxReplicas)
	case c.Proxies < 1 || c.Proxies > maxProxies:
		return fmt.Errorf("simulate: %d proxies; give 1 … %d", c.Proxies, maxProxies)
	case c.KVTokens < defaultBlockTokens:
		return fmt.Errorf("simulate: a KV cache of %d tokens holds no block of %d", c.KVTokens, defaultBlockTokens)
	case c.KVTokens > maxKVTokens:
		return fmt.Errorf("simulate: a KV cache of %d tokens; give at most %d", c.KVTokens, maxKVTokens)
	case !(c.Stress > 0 && c.Stress <= 1):
		return fmt.Errorf("simulate: a stress of %v; give a share above 0 and at most 1", c.Stress)
	case !(c.Slack <= 1):
		return fmt.Errorf("simulate: a slack of %v of the least cost; give at most 1", c.Slack)
	case c.MaxBatch < 1:
		return fmt.Errorf("simulate: batch of %d; give at least 1", c.MaxBatch)
	case c.Inspect != nil && c.InspectInterval < time.Millisecond:
		return fmt.Errorf("simulate: inspections every %v; give at least 1ms", c.InspectInterval)
	case c.ReportInterval < time.Millisecond || c.ReportDelay < 0 || c.ReportDelay > c.ReportInterval || c.HealthDelay < 0:
		return fmt.Errorf("simulate: reports every %v after %v, health after %v; reports need at least 1ms, and a delay up to their interval", c.ReportInterval, c.ReportDelay, c.HealthDelay)
	}
	if err := c.Profile.Validate(); err != nil {
		return fmt.Errorf("simulate: %w", err)
	}
	if !slices.Contains(Policies(), c.Policy) {
		return fmt.Errorf("simulate: policy %q: must be one of %q", c.Policy, Policies())
	}
	if err := c.validateStages(); err != nil {
		return err
	}
	if c.Proxies > 1 && movesRequests(c.Policy) {
		return fmt.Errorf("simulate: policy %q: one scheduler sends all requests; give 1 proxy, not %d", c.Policy, c.Proxies)
	}
	if c.Admission && !isCascade(c.Policy) {
		return fmt.Errorf("simulate: policy %q: only Cascade's front ends refuse requests, and this policy admits all requests; leave Admission out", c.Policy)
	}
	switch k := c.PrefillReplicas; {
	case c.Policy == prefillDecode && k < 1 || k < 0 || k > 0 && k >= c.Replicas:
		return fmt.Errorf("simulate: policy %q: %d prefill replicas of %d; give at least 1, and leave at least 1 to generate", c.Policy, k, c.Replicas)
	case k > 0 && !mayPrefill(c.Policy):
		return fmt.Errorf("simulate: policy %q has no prefill replicas; %q, %q and %q may have", c.Policy, Cascade, OneStage, prefillDecode)
	}
	for i, f := range c.Faults {
		switch {
		case f.Kind != Fail && f.Kind != Drain && f.Kind != Slow:
			return fmt.Errorf("simulate: fault %d: kind %q must be %q, %q or %q", i, f.Kind, Fail, Drain, Slow)
		case (f.Kind == Slow) != (f.Speed > 0) || math.IsInf(f.Speed, 1):
			return fmt.Errorf("simulate: fault %d: speed %v: must be positive for kind %q, and 0 for others", i, f.Speed, Slow)
		case f.Replica < 0 || f.Replica >= c.Replicas:
			return fmt.Errorf("simulate: fault %d: replica %d of %d", i, f.Replica, c.Replicas)
		case f.At < 0 || f.Until != 0 && f.Until <= f.At:
			return fmt.Errorf("simulate: fault %d: from %v until %v", i, f.At, f.Until)
		}
	}
	return nil
}

// validateStages checks the configured stages.
func (c Config) validateStages() error {
	if len(c.Stages.Counts) == 0 && len(c.Stages.Cuts) == 0 {
		return nil
	}
	plan, sum, low := policies.Plan{Model: modelName}, 0, policies.Tokens(0)
	for i, n := range c.Stages.Counts {
		stage := policies.Stage{Low: low, High: policies.Unbounded}
		if i < len(c.Stages.Cuts) {
			stage.High = c.Stages.Cuts[i]
		}
		for range min(n, maxReplicas) {
			stage.Replicas = append(stage.Replicas, policies.ReplicaID(fmt.Sprint(sum)))
			sum++
		}
		plan.Stages, low = append(plan.Stages, stage), stage.High
	}
	err := plan.Validate()
	switch {
	case !HasStages(c.Policy):
		return fmt.Errorf("simulate: policy %q: its stages cannot be configured", c.Policy)
	case len(c.Stages.Counts) != len(c.Stages.Cuts)+1:
		return fmt.Errorf("simulate: stages: %d cuts and %d counts; give one count more than cuts", len(c.Stages.Cuts), len(c.Stages.Counts))
	case err != nil:
		return fmt.Errorf("simulate: stages: %w", err)
	case sum != c.Replicas-c.PrefillReplicas:
		return fmt.Errorf("simulate: stages: %d replicas in all, but the fleet has %d for them", sum, c.Replicas-c.PrefillReplicas)
	}
	return nil
}
