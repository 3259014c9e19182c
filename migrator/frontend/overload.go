package frontend

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// Overload configures which requests are refused because they would wait for too
// long (package admission). A refused request gets 429 with Retry-After.
type Overload struct {
	// Off admits all requests.
	Off bool
	// Slowdown is how many times longer than on an idle replica a request may take by
	// the prediction; 0 means admission.DefaultSlowdown.
	Slowdown float64
	// Batch is how many requests the engine runs at once; 0 for no limit.
	Batch int
	// TenantHeader names the header field with the tenant of a request, which a gateway
	// in front must set; "" means that all requests are of one tenant.
	TenantHeader string
	// Tenants are the shares and priorities; other tenants have weight 1 and level 0.
	Tenants map[string]admission.Tenant
}

// expectedOutput is taken for the output of requests before any has ended.
const expectedOutput policies.Tokens = 256

// maxTenants bounds the tenants that are counted apart; the requests of more have one count.
const maxTenants = 1 << 12

// overloadedError refuses a request that would wait for too long.
type overloadedError struct{ admission.Verdict }

func (e *overloadedError) Error() string {
	return fmt.Sprintf("the replica is overloaded: the request would take %.1f s, of which it waits %.1f s, instead of %.1f s; send it again after %d s", e.Latency, e.Wait, e.Alone, e.Retry)
}

// refuseOverload answers a request that no replica takes. Proxies do not send it to another
// one, and do not count it against the replica, which is well.
func refuseOverload(w http.ResponseWriter, busy *overloadedError) {
	w.Header().Set("Retry-After", strconv.Itoa(busy.Retry))
	writeProblem(w, openai.Problem{Status: http.StatusTooManyRequests, Kind: "RateLimitError", Message: busy.Error()})
}

// admittedWork counts what the own engine has been given, by tenant.
type admittedWork struct {
	decider  admission.Decider
	overload Overload

	mu       sync.Mutex
	work     admission.Work
	output   float64                     // mean of recent requests
	byTenant map[string]*policies.Tokens // demand; of tenants that have any
	weights  int                         // Σ of the weights of these tenants
	refused  uint64
}

// share is what one leg has of the counts.
type share struct {
	tenant  string
	demand  policies.Tokens
	waiting policies.Tokens // until its first token
}

func newAdmittedWork(cfg Config) *admittedWork {
	a := &admittedWork{overload: cfg.Overload, byTenant: make(map[string]*policies.Tokens)}
	if !cfg.Overload.Off {
		a.decider = admission.Decider{Cost: cfg.Cost, Capacity: cfg.KVTokens, Batch: cfg.Overload.Batch, Slowdown: cfg.Overload.Slowdown}
	}
	return a
}

// tenantOf returns the tenant of a client's request, "" if all requests are of one.
func (a *admittedWork) tenantOf(h http.Header) string {
	if a.overload.TenantHeader == "" {
		return ""
	}
	return h.Get(a.overload.TenantHeader)
}

// admit counts a leg. A client's first one is refused if it would wait for too long, unless
// it is passed through: how much it computes is not known.
func (a *admittedWork) admit(lr *legRequest) (share, error) {
	first := lr.arrival.Input == 0
	input, sent := lr.arrival.Estimate, policies.Tokens(0)
	if !first {
		input, sent = lr.arrival.Input, lr.arrival.Output
	}
	s := share{}
	if a.overload.TenantHeader != "" {
		s.tenant = lr.tenant
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	output := expectedOutput
	if a.output > 0 {
		output = policies.Tokens(a.output) + 1
	}
	if most := lr.request.MaxOutput; most > 0 {
		output = min(output, most)
	}
	output = max(output, sent+1)
	own := a.byTenant[s.tenant]
	if own == nil && len(a.byTenant) >= maxTenants {
		s.tenant = ""
		own = a.byTenant[""]
	}
	if first && !lr.passed {
		v := a.decider.Decide(a.work, admission.Request{Input: input, Output: output, Share: a.shareLocked(s.tenant, own)})
		a.work.Alone = mean(a.work.Alone, v.Alone)
		if !v.Admit {
			a.refused++
			return share{}, &overloadedError{v}
		}
	}
	s.demand = input + output
	if !lr.arrival.HasKV {
		s.waiting = input
	}
	if own == nil {
		own = new(policies.Tokens)
		a.byTenant[s.tenant] = own
		a.weights += a.weight(s.tenant)
	}
	*own += s.demand
	a.work.Requests++
	a.work.Demand += s.demand
	a.work.Waiting += s.waiting
	return s, nil
}

// shareLocked returns the share of a tenant's request, a.mu held.
func (a *admittedWork) shareLocked(tenant string, own *policies.Tokens) float64 {
	if a.overload.TenantHeader == "" {
		return 1
	}
	demand := policies.Tokens(0)
	if own != nil {
		demand = *own
	}
	return admission.Share(a.overload.Tenants[tenant], demand, a.work.Demand, a.weights)
}

// weight returns the weight of a tenant's share.
func (a *admittedWork) weight(tenant string) int { return max(a.overload.Tenants[tenant].Weight, 1) }

// begin notes that a leg has its first token.
func (a *admittedWork) begin(s *share) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.work.Waiting -= s.waiting
	s.waiting = 0
}

// end notes that a leg has ended, with so many tokens of output if that was all of the answer.
func (a *admittedWork) end(s *share, output policies.Tokens, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.work.Requests--
	a.work.Demand -= s.demand
	a.work.Waiting -= s.waiting
	if own := a.byTenant[s.tenant]; own != nil {
		if *own -= s.demand; *own <= 0 {
			delete(a.byTenant, s.tenant)
			a.weights -= a.weight(s.tenant)
		}
	}
	if *s = (share{}); !all || output == 0 {
		return
	}
	a.output = mean(a.output, float64(output))
	a.work.Output = policies.Tokens(a.output)
}

// mean returns a mean that forgets, with one more value.
func mean(old, value float64) float64 {
	const keep = 0.95
	if old == 0 {
		return value
	}
	return keep*old + (1-keep)*value
}

// setCapacity sets the size of the KV cache.
func (a *admittedWork) setCapacity(kv policies.Tokens) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.overload.Off {
		a.decider.Capacity = kv
	}
}

// setIteration notes the recent time between tokens.
func (a *admittedWork) setIteration(seconds float64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.work.Iteration = seconds
}

// refused returns how many legs were refused because they would have waited for too long.
func (srv *Server) refused() uint64 {
	srv.admission.mu.Lock()
	defer srv.admission.mu.Unlock()
	return srv.admission.refused
}

// overloaded returns the refusal in an error, nil for none.
func overloaded(err error) *overloadedError {
	var busy *overloadedError
	errors.As(err, &busy)
	return busy
}
