package place

import "github.com/cascadeinfer/cascade/policies"

// Cheapest places a request where it costs least (Candidate.Price): at the own replica, unless a peer is cheaper. Among
// equal peers the one with the least load wins, then list order.
//
// A length is a cost, not a fence: the candidates are of all stages. A request that cannot move is never placed in a
// shorter stage, and replicas that drain are no candidates. If none is left, a peer of the request's stage or of a
// longer one gets it.
//
// A replica whose load is above twice the mean of the candidates of its stage, and by more than the slack of a few
// requests, is no candidate unless all are: what it has cached makes it cheap, and outputs may be longer than
// expected.
type Cheapest struct{}

// boundSlack is how many tokens a replica may always hold above the bound on its load; where the prompt is longer, its
// length.
const boundSlack policies.Tokens = 16384

var _ policies.Placer = Cheapest{}

// Place implements policies.Placer.
func (Cheapest) Place(a policies.Arrival) policies.ReplicaID {
	if a.Hops > 0 {
		return ""
	}
	length, movable := a.Request.Length(), policies.Movable(a.Request) == policies.NotPinned
	mayRun := func(c *policies.Candidate) bool { return !c.Draining && (movable || length < c.High) }
	slack := max(boundSlack, a.Request.Input)
	var best *policies.Candidate
	if (mayRun(&a.Own) || a.Request.Estimated && !a.Own.Draining) && withinBound(&a, &a.Own, slack) {
		best = &a.Own
	}
	for i := range a.Peers {
		c := &a.Peers[i]
		if c.ID == a.Own.ID || !mayRun(c) {
			continue
		}
		if (best == nil || c.Price < best.Price) && !withinBound(&a, c, slack) {
			continue
		}
		if best == nil || c.Price < best.Price || c.Price == best.Price && best != &a.Own && c.Load < best.Load {
			best = c
		}
	}
	switch best {
	case nil:
		if mayRun(&a.Own) {
			return "" // all are above the bound
		}
		return bestOfExactOrLonger(a, policies.Unbounded)
	case &a.Own:
		return ""
	}
	return best.ID
}

// withinBound reports whether a candidate's load is within twice the mean of its stage and the slack.
func withinBound(a *policies.Arrival, c *policies.Candidate, slack policies.Tokens) bool {
	sum, n := policies.Tokens(0), policies.Tokens(0)
	add := func(x *policies.Candidate) {
		if x.Low == c.Low && x.High == c.High {
			sum, n = sum+min(max(x.Load, 0), maxLoad), n+1
		}
	}
	add(&a.Own)
	for i := range a.Peers {
		if a.Peers[i].ID != a.Own.ID {
			add(&a.Peers[i])
		}
	}
	return n == 0 || min(c.Load, maxLoad) <= 2*sum/n+slack
}

// maxLoad is the most that a candidate may claim: no sum overflows.
const maxLoad policies.Tokens = 1 << 40
