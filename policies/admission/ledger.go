package admission

import "github.com/cascadeinfer/cascade/policies"

const (
	// expectedOutput is taken for the output of requests before any has ended.
	expectedOutput policies.Tokens = 256
	// MaxTenants bounds the tenants that a Ledger counts apart; the requests of more have one count.
	MaxTenants = 1 << 12
)

// Ledger counts the work that one replica has admitted, by tenant, and decides by it about what comes.
// Between Admit and End, each request has an Entry. The zero value admits all. It is not safe for
// concurrent use.
type Ledger struct {
	Decider Decider
	// ByTenant says that requests have tenants, and Tenants are their shares and priorities; those that
	// are not listed have weight 1 and level 0.
	ByTenant bool
	Tenants  map[string]Tenant

	work    Work
	output  float64                     // mean of recent requests
	demand  map[string]*policies.Tokens // of the tenants that have any
	weights int                         // Σ of the weights of these tenants
	refused uint64
}

// Arrival is a request that a replica is asked to run.
type Arrival struct {
	Tenant string
	Input  policies.Tokens // prompt tokens, or an estimate, of all prompts
	Cached policies.Tokens // how many of them the replica is expected to hold
	// MaxOutput is the client's limit, 0 for none, and Sent the tokens that it has already.
	MaxOutput, Sent policies.Tokens
	// Prompts and Sequences are those of policies.Request. MaxOutput is of each sequence.
	Prompts, Sequences int
	// HasKV says that no prompt is computed before the next token, and Admitted that the request is
	// counted and never refused: it was admitted before.
	HasKV, Admitted bool
}

// Entry is what one request has of the counts.
type Entry struct {
	tenant    string
	sequences int
	demand    policies.Tokens
	waiting   policies.Tokens // until its first token
}

// Admit decides about a request and counts it if it is admitted: see Verdict.Admit.
func (l *Ledger) Admit(a Arrival) (Entry, Verdict) {
	e := Entry{sequences: max(a.Sequences, a.Prompts, 1)}
	if l.ByTenant {
		e.tenant = a.Tenant
	}
	output := expectedOutput
	if l.output > 0 {
		output = policies.Tokens(l.output) + 1
	}
	if a.MaxOutput > 0 {
		output = min(output, a.MaxOutput)
	}
	output = max(output, a.Sent+1)
	own := l.demand[e.tenant]
	if own == nil && len(l.demand) >= MaxTenants {
		e.tenant = ""
		own = l.demand[""]
	}
	v := Verdict{Admit: true}
	if !a.Admitted {
		v = l.Decider.Decide(l.work, Request{Input: a.Input, Cached: a.Cached, Output: output, Prompts: a.Prompts, Sequences: e.sequences, Share: l.share(e.tenant, own)})
		l.work.Alone = mean(l.work.Alone, v.Alone)
		if !v.Admit {
			l.refused++
			return Entry{}, v
		}
	}
	e.demand = a.Input + policies.Tokens(e.sequences)*output
	if !a.HasKV {
		e.waiting = max(a.Input-a.Cached, 0)
	}
	if own == nil {
		if l.demand == nil {
			l.demand = make(map[string]*policies.Tokens)
		}
		own = new(policies.Tokens)
		l.demand[e.tenant] = own
		l.weights += l.weight(e.tenant)
	}
	*own += e.demand
	l.work.Requests += e.sequences
	l.work.Demand += e.demand
	l.work.Waiting += e.waiting
	return e, v
}

// share returns the share of a tenant's request.
func (l *Ledger) share(tenant string, own *policies.Tokens) float64 {
	if !l.ByTenant {
		return 1
	}
	demand := policies.Tokens(0)
	if own != nil {
		demand = *own
	}
	return Share(l.Tenants[tenant], demand, l.work.Demand, l.weights)
}

// weight returns the weight of a tenant's share.
func (l *Ledger) weight(tenant string) int { return max(l.Tenants[tenant].Weight, 1) }

// Begin records that a request has its first token here.
func (l *Ledger) Begin(e *Entry) {
	l.work.Waiting -= e.waiting
	e.waiting = 0
}

// End records that a request has ended or left, and clears e. output is the sum over its sequences, if the
// answer was complete.
func (l *Ledger) End(e *Entry, output policies.Tokens, all bool) {
	l.work.Requests -= e.sequences
	l.work.Demand -= e.demand
	l.work.Waiting -= e.waiting
	if own := l.demand[e.tenant]; own != nil {
		if *own -= e.demand; *own <= 0 {
			delete(l.demand, e.tenant)
			l.weights -= l.weight(e.tenant)
		}
	}
	each := float64(output) / float64(max(e.sequences, 1))
	if *e = (Entry{}); !all || output == 0 {
		return
	}
	l.output = mean(l.output, each)
	l.work.Output = policies.Tokens(l.output)
}

// SetIteration records the recent time between tokens, in seconds.
func (l *Ledger) SetIteration(seconds float64) { l.work.Iteration = seconds }

// Work returns what the replica has admitted.
func (l *Ledger) Work() Work { return l.work }

// Refused counts the requests that were refused.
func (l *Ledger) Refused() uint64 { return l.refused }

// Demand returns the demand of each tenant that has any, and the sum of these tenants' weights.
func (l *Ledger) Demand() (byTenant map[string]policies.Tokens, weights int) {
	byTenant = make(map[string]policies.Tokens, len(l.demand))
	for tenant, demand := range l.demand {
		byTenant[tenant] = *demand
	}
	return byTenant, l.weights
}

// mean returns a mean that forgets, with one more value.
func mean(old, value float64) float64 {
	const keep = 0.95
	if old == 0 {
		return value
	}
	return float64(keep*old) + float64((1-keep)*value)
}
