package loadestimate

import "github.com/cascadeinfer/cascade/policies"

// Replica is what the control plane knows of a replica without its reports.
type Replica struct {
	KV    policies.Tokens // its KV cache
	Batch int             // sequences that it runs at once
	// Context is the longest sequence that its model accepts; 0: not known.
	Context policies.Tokens
	// Rate is how fast its engine and its link can fill the cache, in tokens per
	// second; 0: not known.
	Rate float64
	// Late is how long a claim of the migrator counts, at least a second.
	Late policies.Micros
}

// NewReplica returns the Replica whose engine has a cost, which bounds how fast its cache
// fills, for a model with this context. late is Replica.Late.
func NewReplica(r policies.Replica, cost policies.Cost, context policies.Tokens, late policies.Micros) Replica {
	out := Replica{KV: r.Capacity.KV, Batch: r.Capacity.Batch, Context: context, Late: late}
	if cost.D2 > 0 && r.Capacity.TransferRate > 0 {
		// Tokens arrive as its engine computes them and as migrations bring them.
		out.Rate = 1/cost.D2 + float64(r.Capacity.TransferRate*float64(context))
	}
	return out
}

// Event is an input of an Estimator: a Claim, a ProxyReport or a Tick.
type Event interface{ event() }

// Claim is the load that the replica's migrator reports.
type Claim struct {
	Running, Waiting int
	// Streams are the requests of its own clients, wherever they run. The proxies count
	// the same requests as in progress at the replica.
	Streams        int
	Held, Promised policies.Tokens
	// Bounded says that the report had figures out of bounds, negative ones
	// included, which were bounded before they came here.
	Bounded bool
}

// ProxyReport is the sum of the reports of all proxies about the replica.
type ProxyReport struct {
	Requests int // in progress now
	// Answers is how many responses since the last report carried the share of the KV
	// cache in use, and Share is their mean, from 0 to 1.
	Answers uint64
	Share   float64
	// Succeeded and Failed are how many requests ended since the last report, the
	// latter by an answer 5xx, or without one.
	Succeeded, Failed uint64
}

// Tick says that time has passed and that weights are about to be computed: at
// most one a second.
type Tick struct{}

func (Claim) event()       {}
func (ProxyReport) event() {}
func (Tick) event()        {}

// Bounds of a plausible claim.
const (
	// maxSharing is how many times requests may count the same block: lengths are
	// summed, but a shared prefix is held once.
	maxSharing = 16
	// maxBatches is how many times its batch an engine may claim to run.
	maxBatches = 2
	// minHidden is how many requests, and half of all of them, proxies must have in
	// progress beyond those that a migrator claims before the claim counts as bad:
	// requests begin and end between the two reports.
	minHidden = 8
)

// impossible returns why no replica can be in the claimed state, or "".
func (r Replica) impossible(c Claim) string {
	context := policies.Tokens(c.Running) * r.Context
	switch {
	case c.Bounded || c.Held < 0 || c.Promised < 0 || c.Running < 0 || c.Waiting < 0 || c.Streams < 0:
		return "figures out of bounds"
	case c.Held > r.KV && (r.Context > 0 && c.Held > context || c.Held > maxSharing*r.KV):
		return "more tokens than its KV cache holds"
	case c.Running > maxBatches*max(r.Batch, 1):
		return "more running requests than its batch takes"
	}
	return ""
}

// impossibleChange returns why a replica cannot get from one state to the next within
// dt, or "". Half a cache may be added at once, as a prefix that is cached already; the
// rest has to be computed or migrated. A cache may become empty at once.
func (r Replica) impossibleChange(from, to Claim, dt policies.Micros) string {
	added := float64(min(to.Held, r.KV) - min(from.Held, r.KV))
	if r.Rate <= 0 || added <= float64(r.KV)/2+float64(r.Rate*(float64(dt)/float64(policies.Second))) {
		return ""
	}
	return "more new tokens than its engine and link can bring"
}

// contradicts returns why the proxies' requests in progress contradict a migrator that
// claims at most claimed requests, or "". Claims of more requests are not contradicted:
// other proxies may not report, and requests migrate.
func (p ProxyReport) contradicts(claimed int) string {
	if p.Requests-claimed < minHidden || claimed >= (p.Requests+1)/2 {
		return ""
	}
	return "far fewer requests than proxies have in progress there"
}

// requests returns the larger of the two counts of requests in a claim.
func (c Claim) requests() int { return max(c.Streams, c.Running+c.Waiting) }
