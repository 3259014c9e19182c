package adoption_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The output of a
// step is its decision. The commands:
//
//	config gain=0.1 windows=3 …       sets Config fields, before the first step
//	replicas a b c!                   the fleet; "!" drains
//	planner cuts=100,900 counts=1,2,1 best=70 one=100 present=90 iterations=1,2,3
//	                                  what the planner will say: its proposal and
//	                                  its cost (inf: infeasible), the cost of one
//	                                  stage, and the price of any other plan; over=1000
//	                                  are the cuts of one that is beyond its limits;
//	                                  keeps what it does not name
//	seen 1000                         requests counted
//	flow 0:90 100:10                  tokens generated per second, by length bucket
//	undivided 0.02                    iteration time that one stage would have
//	measured 1 2                      iteration times of the stages, until changed
//	plan 0:a,b 100:c                  another planner puts a plan in force
//	step 10                           time; an adopted plan comes into force
//	lose 10                           the same, but the adopted plan does not
//	holdoff 10                        a rollback that was decided elsewhere
//	restore 10 20                     another machine, with a stored hold-off of 20 s until 10
func TestScenarios(t *testing.T) { testkit.TestScenarios(t, "testdata", newPlayer) }

// script is a planner whose answers a scenario sets.
type script struct {
	Cuts               []policies.Tokens
	Counts             []int
	Best, One, Present float64
	Iterations         []float64
	Invalid            bool
	Over               []policies.Tokens // the cuts of a plan beyond its limits
	Crowded            bool              // one stage lacks the headroom that is required of a new plan
	undivided          float64
}

func (s *script) Partition(w policies.Workload) (policies.Partition, error) {
	if math.IsInf(s.Best, 1) {
		return policies.Partition{}, policies.ErrInfeasible
	}
	p := policies.Partition{Cuts: s.Cuts, Counts: s.Counts, Cost: s.Best, OneStage: s.One}
	if s.Crowded {
		p.OneStage = math.Inf(1)
	}
	return p, nil
}

func (s *script) Price(w policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	if s.Invalid {
		return policies.Partition{}, &policies.Violation{Subject: "workload", Invariant: "broken"}
	}
	p := policies.Partition{Cuts: cuts, Counts: counts, Cost: s.Present, OneStage: s.One, Iterations: s.Iterations}
	if len(counts) == 1 {
		p.Cost = p.OneStage
		if s.undivided > 0 {
			p.Iterations = []float64{s.undivided}
		}
	}
	if math.IsInf(p.Cost, 1) || len(cuts) > 0 && slices.Equal(cuts, s.Over) {
		return p, policies.ErrInfeasible
	}
	return p, nil
}

// newPlayer returns a machine without history and its planner.
func newPlayer(*testing.T) testkit.Player {
	s := &script{}
	c := adoption.Config{Planner: s}
	var m *adoption.Machine
	in := adoption.Input{Model: "m"}
	return func(words []string) (out []string, err error) {
		args := words[1:]
		switch words[0] {
		case "config":
			err = testkit.SetFields(&c, args)
		case "replicas":
			in.Replicas = nil
			for _, id := range args {
				id, draining := strings.CutSuffix(id, "!")
				in.Replicas = append(in.Replicas, policies.Replica{ID: policies.ReplicaID(id), Model: "m", Draining: draining})
			}
		case "planner":
			err = testkit.SetFields(s, args)
		case "seen":
			_, err = fmt.Sscan(args[0], &in.Workload.Flow.Seen)
		case "flow":
			f := &in.Workload.Flow
			seen := f.Seen
			*f = policies.NewFlow(make([]policies.Tokens, len(args)))
			f.Seen = seen
			for i, arg := range args {
				if _, err := fmt.Sscanf(arg, "%d:%g", &f.Edges[i], &f.Tokens[i]); err != nil {
					return nil, err
				}
			}
		case "undivided":
			_, err = fmt.Sscan(args[0], &s.undivided)
		case "measured":
			err = testkit.SetFields(&in, []string{"Iterations=" + strings.Join(args, ",")})
		case "plan":
			epoch := in.Plan.Epoch + 1
			in.Plan, err = parsePlan(args)
			in.Plan.Epoch = epoch
		case "holdoff", "restore", "step", "lose":
			if m == nil || words[0] == "restore" {
				if m, err = adoption.New(c); err != nil {
					return nil, err
				}
			}
			if _, err := fmt.Sscan(args[0], &in.Now); err != nil {
				return nil, err
			}
			switch words[0] {
			case "holdoff":
				m.HoldOff(in.Now)
			case "restore":
				var length float64
				if _, err := fmt.Sscan(args[1], &length); err != nil {
					return nil, err
				}
				m.RestoreHoldOff(in.Now, length)
			}
			if words[0] == "holdoff" || words[0] == "restore" {
				until, length := m.HoldOffState()
				return []string{fmt.Sprintf("held off until %v, for %v", until, length)}, nil
			}
			d := m.Step(in)
			out = append(out, describe(d))
			if d.Adopt {
				err = d.Plan.Validate()
				if words[0] == "step" {
					d.Plan.Epoch++
					in.Plan = d.Plan
				}
			}
		default:
			err = errors.New("no such command")
		}
		return out, err
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
