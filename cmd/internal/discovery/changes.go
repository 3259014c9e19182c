package discovery

// Change is a Pod whose state has changed.
type Change struct {
	Status
	// Before is the former state; LeftOut for a Pod that is new.
	Before State
	// Gone says that the Pod no longer exists; then State and Reason are the former ones.
	Gone bool
}

// Changes returns what differs between two decisions, in the order of the Pods: new
// states, and new reasons for not serving. A Pod that is new and serves is a change, and
// one that was left out and is gone is none.
func Changes(before, after Decision) []Change {
	type key struct{ pod, replica string }
	old := make(map[key]Status, len(before.Pods))
	for _, s := range before.Pods {
		old[key{s.Pod, s.Replica}] = s
	}
	var out []Change
	for _, s := range after.Pods {
		was, ok := old[key{s.Pod, s.Replica}]
		delete(old, key{s.Pod, s.Replica})
		if !ok || was.State != s.State || was.Reason != s.Reason {
			out = append(out, Change{Status: s, Before: was.State})
		}
	}
	for _, s := range before.Pods {
		if _, gone := old[key{s.Pod, s.Replica}]; gone && s.State != LeftOut {
			out = append(out, Change{Status: s, Before: s.State, Gone: true})
		}
	}
	return out
}
