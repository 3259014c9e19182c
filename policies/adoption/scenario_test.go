package adoption_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The output of a
// step is its decision. The commands:
//
//	config gain=0.1 windows=3 …       sets Config fields, before the first step
//	replicas a b c!                   the fleet; "!" drains
//	planner cuts=100,900 counts=1,2,1 best=70 one=100 present=90 iterations=1,2,3
//	                                  what the planner will say: its proposal and
//	                                  its cost ("none": infeasible), the cost of one
//	                                  stage, and the price of any other plan;
//	                                  keeps what it does not name
//	seen 1000                         requests counted
//	flow 0:90 100:10                  tokens generated per second, by length bucket
//	undivided 0.02                    iteration time that one stage would have
//	measured 1 2                      iteration times of the stages, until changed
//	plan 0:a,b 100:c                  another planner puts a plan in force
//	step 10                           time; an adopted plan comes into force
//	lose 10                           the same, but the adopted plan does not
func TestScenarios(t *testing.T) { policytest.TestScenarios(t, "testdata", newPlayer) }

// script is a planner whose answers a scenario sets.
type script struct {
	proposal   policies.Partition
	infeasible bool
	present    float64
	iterations []float64
	undivided  float64
	invalid    bool
}

func (s *script) Partition(w policies.Workload) (policies.Partition, error) {
	if s.infeasible {
		return policies.Partition{}, policies.ErrInfeasible
	}
	return s.proposal, nil
}

func (s *script) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	if s.invalid {
		return policies.Partition{}, &policies.Violation{Subject: "workload", Invariant: "broken"}
	}
	p := policies.Partition{Cuts: cuts, Counts: counts, Cost: s.present, OneStage: s.proposal.OneStage, Iterations: s.iterations}
	if len(counts) == 1 {
		p.Cost = p.OneStage
		if s.undivided > 0 {
			p.Iterations = []float64{s.undivided}
		}
	}
	if math.IsInf(p.Cost, 1) {
		return p, policies.ErrInfeasible
	}
	return p, nil
}

// newPlayer returns a machine without history and its planner.
func newPlayer(t *testing.T) policytest.Player {
	s := &script{}
	c := adoption.Config{Planner: s}
	var m *adoption.Machine
	in := adoption.Input{Model: "m"}
	return func(words []string) (out []string, err error) {
		fail := func(err error) {
			if err != nil {
				t.Fatalf("%q: %v", words, err)
			}
		}
		args := words[1:]
		switch words[0] {
		case "config":
			fail(configure(&c, args))
		case "replicas":
			in.Replicas = nil
			for _, id := range args {
				in.Replicas = append(in.Replicas, policies.Replica{
					ID: policies.ReplicaID(strings.TrimSuffix(id, "!")), Model: "m", Draining: strings.HasSuffix(id, "!"),
				})
			}
		case "planner":
			fail(s.setAnswer(args))
		case "seen":
			seen, err := strconv.ParseUint(args[0], 10, 64)
			fail(err)
			in.Workload.Flow.Seen = seen
		case "flow":
			in.Workload.Flow.Edges, in.Workload.Flow.Tokens = nil, nil
			for _, arg := range args {
				edge, rate, _ := strings.Cut(arg, ":")
				e, err := strconv.ParseInt(edge, 10, 64)
				fail(err)
				r, err := strconv.ParseFloat(rate, 64)
				fail(err)
				in.Workload.Flow.Edges = append(in.Workload.Flow.Edges, policies.Tokens(e))
				in.Workload.Flow.Tokens = append(in.Workload.Flow.Tokens, r)
			}
		case "undivided":
			var err error
			s.undivided, err = strconv.ParseFloat(args[0], 64)
			fail(err)
		case "measured":
			var err error
			in.Iterations, err = numbers(args)
			fail(err)
		case "plan":
			var err error
			in.Plan, err = parsePlan(args)
			fail(err)
		case "step", "lose":
			if m == nil {
				var err error
				m, err = adoption.New(c)
				fail(err)
			}
			now, err := strconv.ParseFloat(args[0], 64)
			fail(err)
			in.Now = now
			d := m.Step(in)
			out = append(out, describe(d))
			if d.Adopt {
				fail(d.Plan.Validate())
				if words[0] == "step" {
					in.Plan = d.Plan
				}
			}
		default:
			return nil, errors.New("no such command")
		}
		return out, nil
	}
}

// describe writes a decision on one line.
func describe(d adoption.Decision) string {
	var b strings.Builder
	if d.Adopt {
		fmt.Fprintf(&b, "adopt, %s:", d.Reason)
		for _, s := range d.Plan.Stages {
			fmt.Fprintf(&b, " %v:", s.Low)
			for i, id := range s.Replicas {
				if i > 0 {
					b.WriteByte(',')
				}
				b.WriteString(string(id))
			}
		}
	} else {
		fmt.Fprintf(&b, "keep, %s", d.Reason)
	}
	if d.Gain != 0 {
		fmt.Fprintf(&b, ", gain %.3g", d.Gain)
	}
	if d.Moved != 0 {
		fmt.Fprintf(&b, ", moved %d", d.Moved)
	}
	if d.Err != nil {
		fmt.Fprintf(&b, " (%v)", d.Err)
	}
	return b.String()
}

func numbers(words []string) (list []float64, err error) {
	for _, w := range words {
		x := math.Inf(1)
		if w != "none" {
			if x, err = strconv.ParseFloat(w, 64); err != nil {
				return nil, err
			}
		}
		list = append(list, x)
	}
	return list, nil
}

func configure(c *adoption.Config, args []string) error {
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		x, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return err
		}
		switch name {
		case "period":
			c.Period = x
		case "gain":
			c.Gain = x
		case "split":
			c.SplitGain = x
		case "movecost":
			c.MoveCost = x
		case "windows":
			c.Windows = int(x)
		case "holdoff":
			c.HoldOff = x
		case "holdoffmax":
			c.HoldOffMax = x
		default:
			return fmt.Errorf("no such field: %s", name)
		}
	}
	return nil
}

// setAnswer changes the planner's answers.
func (s *script) setAnswer(args []string) error {
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		var fields []string
		if value != "" {
			fields = strings.Split(value, ",")
		}
		list, err := numbers(fields)
		if err != nil {
			return err
		}
		switch name {
		case "cuts":
			s.proposal.Cuts = nil
			for _, x := range list {
				s.proposal.Cuts = append(s.proposal.Cuts, policies.Tokens(x))
			}
		case "counts":
			s.proposal.Counts = nil
			for _, x := range list {
				s.proposal.Counts = append(s.proposal.Counts, int(x))
			}
		case "best":
			s.proposal.Cost, s.infeasible = list[0], math.IsInf(list[0], 1)
		case "one":
			s.proposal.OneStage = list[0]
		case "present":
			s.present = list[0]
		case "iterations":
			s.iterations = list
		case "invalid":
			s.invalid = list[0] == 1
		default:
			return fmt.Errorf("the planner says no %s", name)
		}
	}
	return nil
}

func parsePlan(args []string) (policies.Plan, error) {
	p := policies.Plan{Model: "m"}
	for i, a := range args {
		low, ids, _ := strings.Cut(a, ":")
		x, err := strconv.ParseInt(low, 10, 64)
		if err != nil {
			return p, err
		}
		if i > 0 {
			p.Stages[i-1].High = policies.Tokens(x)
		}
		s := policies.Stage{Low: policies.Tokens(x), High: policies.Unbounded}
		for _, id := range strings.Split(ids, ",") {
			s.Replicas = append(s.Replicas, policies.ReplicaID(id))
		}
		p.Stages = append(p.Stages, s)
	}
	return p, nil
}
