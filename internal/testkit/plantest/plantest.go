// Package plantest converts plans to and from short texts, for tests.
package plantest

import (
	"strings"

	"github.com/cascadeinfer/cascade/policies"
)

// Parse parses "a b | c d": the stages of model m in ascending order of length, cut at
// 100, 200, …, under epoch 7.
func Parse(text string) policies.Plan {
	p := policies.Plan{Model: "m", Epoch: 7}
	parts := strings.Split(text, "|")
	for i, part := range parts {
		s := policies.Stage{Low: policies.Tokens(100 * i), High: policies.Tokens(100 * (i + 1))}
		if i == len(parts)-1 {
			s.High = policies.Unbounded
		}
		for _, id := range strings.Fields(part) {
			s.Replicas = append(s.Replicas, policies.ReplicaID(id))
		}
		p.Stages = append(p.Stages, s)
	}
	return p
}

// Format formats a plan as "a b |100| c d".
func Format(p policies.Plan) string {
	var b strings.Builder
	for i, s := range p.Stages {
		if i > 0 {
			b.WriteString(" |" + s.Low.String() + "| ")
		}
		for j, id := range s.Replicas {
			if j > 0 {
				b.WriteByte(' ')
			}
			b.WriteString(string(id))
		}
	}
	return b.String()
}
