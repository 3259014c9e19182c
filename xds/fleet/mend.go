package fleet

import "github.com/cascadeinfer/cascade/policies"

// member is what mend knows of one replica that may serve: configured and not
// draining.
type member struct {
	id    policies.ReplicaID
	ready bool
	work  policies.Tokens
}

// mend returns the plan that changes as little as it can so that the stages
// hold exactly the members and each has a ready one: those who left are taken
// out, new ones join the stage with most work per ready replica, a stage
// without a ready replica borrows one from the stage with most of them, and
// where nobody can lend, it merges with its longer neighbour. Cuts stay
// otherwise, and so does the order of replicas. Without any member, or any
// ready one to place, mend moves nobody: there is nothing better to serve.
//
// The plan must be valid; the result is valid and keeps its epoch.
func mend(plan policies.Plan, members []member) policies.Plan {
	if len(members) == 0 {
		return plan
	}
	m := mender{by: make(map[policies.ReplicaID]member, len(members))}
	for _, r := range members {
		m.by[r.id] = r
	}
	placed := make(map[policies.ReplicaID]bool, len(members))
	for _, s := range plan.Stages {
		kept := policies.Stage{Low: s.Low, High: s.High}
		for _, id := range s.Replicas {
			if _, ok := m.by[id]; ok {
				kept.Replicas = append(kept.Replicas, id)
				placed[id] = true
			}
		}
		m.stages = append(m.stages, kept)
	}
	for _, r := range members {
		if !placed[r.id] {
			i := m.neediest()
			m.stages[i].Replicas = append(m.stages[i].Replicas, r.id)
		}
	}
	m.fill()
	return policies.Plan{Model: plan.Model, Epoch: plan.Epoch, Stages: m.stages}
}

type mender struct {
	by     map[policies.ReplicaID]member
	stages []policies.Stage
}

// ready counts the ready replicas of a stage.
func (m *mender) ready(i int) (n int) {
	for _, id := range m.stages[i].Replicas {
		if m.by[id].ready {
			n++
		}
	}
	return n
}

// neediest is the stage that a new replica joins: an empty one, else one
// without a ready replica, else the one with most work for each; the longer
// of equals.
func (m *mender) neediest() int {
	best, most := 0, -1.0
	for i, s := range m.stages {
		var work policies.Tokens
		for _, id := range s.Replicas {
			work += m.by[id].work
		}
		need := 3 * float64(maxTokens)
		if n := m.ready(i); n > 0 {
			need = float64(work) / float64(n)
		} else if len(s.Replicas) > 0 {
			need = 2 * float64(maxTokens)
		}
		if need >= most {
			best, most = i, need
		}
	}
	return best
}

// fill gives every stage a replica, and a ready one while there are any.
func (m *mender) fill() {
	any := false
	for i := range m.stages {
		any = any || m.ready(i) > 0
	}
	lacks := func(i int) bool {
		return len(m.stages[i].Replicas) == 0 || any && m.ready(i) == 0
	}
	for i := 0; i < len(m.stages); {
		switch {
		case !lacks(i):
			i++
		case m.lend(i):
			i++
		default:
			i = m.merge(i)
		}
	}
}

// lend moves one ready replica into stage i from the stage with most ready
// ones, the nearest of equals; false when no stage can spare one.
func (m *mender) lend(i int) bool {
	from, most := -1, 1
	for j := range m.stages {
		n := m.ready(j)
		if n > most || n == most && from >= 0 && dist(i, j) < dist(i, from) {
			from, most = j, n
		}
	}
	if from < 0 {
		return false
	}
	// The replica nearest to the stage in the order short to long goes, and it
	// arrives at the end that it comes from.
	donor := m.stages[from].Replicas
	at := -1
	for k, id := range donor {
		if m.by[id].ready && (at < 0 || from < i) {
			at = k
		}
	}
	id := donor[at]
	m.stages[from].Replicas = append(append([]policies.ReplicaID(nil), donor[:at]...), donor[at+1:]...)
	if from < i {
		m.stages[i].Replicas = append([]policies.ReplicaID{id}, m.stages[i].Replicas...)
	} else {
		m.stages[i].Replicas = append(m.stages[i].Replicas, id)
	}
	return true
}

// merge joins stage i with the next longer one, or the last with the one
// before it, and returns the index from which fill goes on.
func (m *mender) merge(i int) int {
	if len(m.stages) == 1 {
		return 1
	}
	if i == len(m.stages)-1 {
		i--
	}
	a, b := m.stages[i], m.stages[i+1]
	joined := policies.Stage{Low: a.Low, High: b.High, Replicas: append(append([]policies.ReplicaID(nil), a.Replicas...), b.Replicas...)}
	m.stages = append(m.stages[:i], append([]policies.Stage{joined}, m.stages[i+2:]...)...)
	return i
}

func dist(a, b int) int { return max(a-b, b-a) }

// samePlan says that two plans route alike: equal ranges and, stage by stage,
// the same replicas in any order. Epochs do not count.
func samePlan(a, b policies.Plan) bool {
	if a.Model != b.Model || len(a.Stages) != len(b.Stages) {
		return false
	}
	for i, s := range a.Stages {
		o := b.Stages[i]
		if s.Low != o.Low || s.High != o.High || len(s.Replicas) != len(o.Replicas) {
			return false
		}
		in := make(map[policies.ReplicaID]bool, len(s.Replicas))
		for _, id := range s.Replicas {
			in[id] = true
		}
		for _, id := range o.Replicas {
			if !in[id] {
				return false
			}
		}
	}
	return true
}
