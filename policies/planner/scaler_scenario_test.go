package planner_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// TestScalerScenarios runs testdata/scaler/*.txt (-rewrite rewrites the expected output). The commands:
//
//	config Utilisation=0.5 Window=60000000 …   sets Config fields, before the first step
//	fleet Present=4 Reporting=4 Silent=1 Waiting=9 Refused=100
//	                    sets fields of the sample, until changed; those not named keep their values
//	demand work=6 rate=10 kv=100 batch=8 iteration=0.1
//	                    flow that keeps 6 replicas busy, 10 requests a second; the capacity of a replica in
//	                    tokens and sequences, and the limit of iteration times in seconds
//	demand unknown      no flow has been counted
//	step 10 [60]        time in seconds; 60 steps of it, of which the last one and those are printed at which
//	                    the number changes
func TestScalerScenarios(t *testing.T) { testkit.TestScenarios(t, "testdata/scaler", newPlayer) }

// demand describes a flow for a scenario. Sequences are 1,000 tokens long.
type demand struct {
	Work, Rate, Iteration float64
	KV                    policies.Tokens
	Batch                 int
}

// cost makes one replica generate 1,000 tokens per second, if it need not wait for anything else.
var cost = policies.Cost{D0: 0.01, D1: 0.001}

func (d demand) workload() policies.Workload {
	f := policies.NewFlow([]policies.Tokens{0})
	f.Tokens[0], f.Arrivals[0], f.Seen = d.Work*1000, d.Rate, 1000
	f.Reads[0] = f.Tokens[0] * 1000
	return policies.Workload{Flow: f, Cost: cost, Capacity: policies.Capacity{KV: d.KV, Batch: d.Batch}, Limits: policies.Limits{Iteration: d.Iteration}}
}

// newPlayer returns a Scaler that knows nothing.
func newPlayer(*testing.T) testkit.Player {
	cfg := planner.ScalerConfig{Window: 60 * policies.Second}
	var s *planner.Scaler
	var in planner.ScaleSample
	now := policies.Micros(0)
	d := demand{KV: 1 << 40, Batch: 1 << 30}
	return func(words []string) (out []string, err error) {
		switch words[0] {
		case "config":
			return nil, testkit.SetFields(&cfg, words[1:])
		case "fleet":
			w := in.Workload
			defer func() { in.Workload = w }()
			return nil, testkit.SetFields(&in, words[1:])
		case "demand":
			if words[1] == "unknown" {
				in.Workload = policies.Workload{}
				return nil, nil
			}
			if err := testkit.SetFields(&d, words[1:]); err != nil {
				return nil, err
			}
			in.Workload = d.workload()
			return nil, nil
		case "step":
			if s == nil {
				if s, err = planner.NewScaler(cfg); err != nil {
					return []string{err.Error()}, nil
				}
			}
			seconds, err := strconv.Atoi(words[1])
			if err != nil {
				return nil, err
			}
			times := 1
			if len(words) > 2 {
				if times, err = strconv.Atoi(words[2]); err != nil {
					return nil, err
				}
			}
			last := -1
			for i := range times {
				now += policies.Micros(seconds) * policies.Second
				if r := s.Step(now, in); r.Desired != last || i == times-1 {
					last = r.Desired
					out = append(out, describe(now, r))
				}
			}
			return out, nil
		}
		return nil, fmt.Errorf("no command %q", strings.Join(words, " "))
	}
}

// describe renders a recommendation.
func describe(now policies.Micros, r planner.Recommendation) string {
	text := fmt.Sprintf("%d s: %d, %s", now/policies.Second, r.Desired, r.Reason)
	if r.Needed > 0 {
		text += fmt.Sprintf("; needed %d for %v, work %.2f, growth %.2f", r.Needed, r.Limit, r.Work, r.Growth)
	}
	if r.Falls > 0 {
		text += fmt.Sprintf("; falls in %d s", r.Falls/policies.Second)
	}
	return text
}
