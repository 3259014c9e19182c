package frontend

import (
	"errors"
	"fmt"
	"net/http"
	"sync"

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

// overloadedError refuses a request that would wait for too long.
type overloadedError struct{ admission.Verdict }

func (e *overloadedError) Error() string {
	return fmt.Sprintf("the replica is overloaded: the request would take %.1f s, of which it waits %.1f s, instead of %.1f s; send it again after %d s", e.Latency, e.Wait, e.Alone, e.Retry)
}

// admittedWork counts what the own engine has been given, by tenant.
type admittedWork struct {
	overload Overload

	mu     sync.Mutex
	ledger admission.Ledger
}

func newAdmittedWork(cfg Config) *admittedWork {
	a := &admittedWork{overload: cfg.Overload, ledger: admission.Ledger{ByTenant: cfg.Overload.TenantHeader != "", Tenants: cfg.Overload.Tenants}}
	if !cfg.Overload.Off {
		a.ledger.Decider = admission.Decider{Cost: cfg.Cost, Capacity: cfg.KVTokens, Batch: cfg.Overload.Batch, Slowdown: cfg.Overload.Slowdown}
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
// how much it computes is not known, as of a recording.
func (a *admittedWork) admit(lr *legRequest) (admission.Entry, error) {
	first := lr.arrival.Input == 0
	arrival := admission.Arrival{
		Tenant: lr.tenant, Input: lr.arrival.Estimate + lr.arrival.Others, Cached: lr.arrival.Cached, MaxOutput: lr.request.MaxOutput, HasKV: lr.arrival.HasKV, Admitted: !first || lr.passed && lr.arrival.Estimate == 0,
		Prompts: lr.arrival.Prompts, Sequences: lr.arrival.Sequences,
	}
	if !first {
		arrival.Input, arrival.Sent = lr.arrival.Input, lr.arrival.Output
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	e, v := a.ledger.Admit(arrival)
	if !v.Admit {
		return e, &overloadedError{v}
	}
	return e, nil
}

// update calls do with the ledger locked.
func (a *admittedWork) update(do func(*admission.Ledger)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	do(&a.ledger)
}

// setCapacity sets the size of the KV cache.
func (a *admittedWork) setCapacity(kv policies.Tokens) {
	if !a.overload.Off {
		a.update(func(l *admission.Ledger) { l.Decider.Capacity = kv })
	}
}

// refused returns how many legs were refused because they would have waited for too long.
func (a *admittedWork) refused() (n uint64) {
	a.update(func(l *admission.Ledger) { n = l.Refused() })
	return n
}

// overloaded returns the refusal in an error, nil for none.
func overloaded(err error) *overloadedError {
	var busy *overloadedError
	errors.As(err, &busy)
	return busy
}
