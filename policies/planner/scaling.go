package planner

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// ScaleSample returns what a Scaler decides by: the flow of the stages and the replicas that may
// serve it, as the view has them. It does not depend on the plan in force, nor on the policy.
func (p *Planner) ScaleSample(v *View) ScaleSample {
	var s ScaleSample
	var eligible, present []policies.Replica
	for i := range v.Replicas {
		r := &v.Replicas[i]
		if r.Reported { // of leaving and prefill replicas, too: their requests are part of the demand
			s.Waiting += r.Load.Waiting
			s.Running += r.Load.Running
			s.Refused += r.Refused
		}
		if !r.MayJoin() || r.Removed || r.DrainOrdered {
			continue
		}
		present = append(present, r.Replica)
		if r.Ready {
			eligible = append(eligible, r.Replica)
		}
		if r.Reported && (r.Restored || r.Age > v.Grace) {
			s.Silent++
		} else if r.Reported {
			s.Reporting++
		}
	}
	s.Present = len(present)
	if len(eligible) == 0 {
		eligible = present
	}
	if len(eligible) > 0 {
		s.Workload = p.workloadOf(v, eligible)
		s.Workload.Flow = v.StageFlow(p.cfg.Edges)
	}
	return s
}

// StageNeeds returns what each stage of the plan in force needs at the flow of the workload, if that may be a
// share of what the stage can serve; nil where that is not known or no number is enough. The sum may be more than one
// stage for all lengths would need: the planner merges stages that its replicas are too few for.
func (p *Planner) StageNeeds(w policies.Workload, share float64) []partition.Need {
	if len(p.plan.Stages) == 0 || len(w.Flow.Edges) == 0 {
		return nil
	}
	needs, err := partition.Flow.Needs(ScaleFlow(w, 1/share), p.plan.Cuts())
	if err != nil {
		return nil
	}
	return needs
}
