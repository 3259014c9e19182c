package discovery

import (
	"cmp"
	"slices"
	"strings"
)

// ConditionType is the type of the condition that discovery writes into the status of Pods. A Pod
// with a readiness gate of that name is ready when its replica takes new requests.
const ConditionType = Prefix + "ready"

// Condition is what the condition of a Pod says.
type Condition struct {
	Ready   bool   // its replica takes new requests
	Reason  string // the State, as one word
	Message string // why; may be empty
}

// PodCondition is the condition that one Pod should have, and the one that it has.
type PodCondition struct {
	Pod, UID string
	Want     Condition
	Have     *Condition // nil: none
}

// Conditions returns the conditions of the Pods of a cluster by a decision, which is in force. Those that
// end a Pod's readiness come first, then those that begin it, each by name. Pods whose containers have
// ended get none, nor do Pods that the decision does not know.
func Conditions(c Cluster, d Decision) []PodCondition {
	decided := make(map[string]Status, len(d.Pods))
	for _, s := range d.Pods {
		if s.Replica != "" {
			decided[s.Replica] = s
		}
	}
	out := make([]PodCondition, 0, len(c.Pods))
	for _, pod := range c.Pods {
		s, known := decided[pod.Name+"."+pod.UID]
		if !known || pod.Ended {
			continue
		}
		out = append(out, PodCondition{Pod: pod.Name, UID: pod.UID, Have: pod.Condition, Want: Condition{
			Ready:   s.State == Serving || s.State == Kept,
			Reason:  [...]string{"LeftOut", "Serving", "Draining", "Kept"}[s.State],
			Message: s.Reason,
		}})
	}
	slices.SortFunc(out, func(a, b PodCondition) int {
		return cmp.Or(compareBools(a.Want.Ready, b.Want.Ready), strings.Compare(a.Pod, b.Pod), strings.Compare(a.UID, b.UID))
	})
	return out
}
