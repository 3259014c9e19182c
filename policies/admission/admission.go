// Package admission decides whether a replica takes a request, or refuses it because
// it would wait for too long: a replica that takes all that comes has its KV cache
// preempted again and again, and finishes nothing in time.
//
// A Decider is pure: the caller states the replica's work and the request. What runs
// already is never refused, so migrations and rescues do not ask.
//
// The measure is the request's own: its predicted latency (the wait, the prefill and
// the tokens at the pace of the batch) over its latency on an idle replica. A request that need not wait is
// always admitted, however slow the replica is, and so is one on an idle replica.
package admission

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	// DefaultSlowdown is how many times longer than on an idle replica a request may
	// take by the prediction. Clients that give up at ten times leave room for what the
	// prediction does not know.
	DefaultSlowdown = 5
	// maxShare is what a tenant may have of the slowdown while it has less than its part
	// of the replica.
	maxShare = 1.5
	// minWait is a wait that is never refused: a few steps of an engine.
	minWait = 0.1 // seconds
	// maxRetry bounds the time after which a client is asked to come back.
	maxRetry = 60 // seconds
)

// Work is what a replica has admitted.
type Work struct {
	Requests int             // admitted and not ended, each as many as it has sequences
	Demand   policies.Tokens // Σ of the lengths that they are expected to reach
	Waiting  policies.Tokens // Σ prompt tokens to be computed for those without a first token
	// Output is the mean output of recent requests; 0 while unknown.
	Output policies.Tokens
	// Alone is the recent mean of Verdict.Alone over all requests that asked; 0 while
	// unknown.
	Alone float64
	// Iteration is the recent mean time between a request's tokens, in seconds; 0 while
	// unknown.
	Iteration float64
}

// Request is what is asked for.
type Request struct {
	Input  policies.Tokens // of all its prompts
	Cached policies.Tokens // of the prompt, which are not computed again
	Output policies.Tokens // expected of each sequence
	// Prompts and Sequences are those of policies.Request.
	Prompts, Sequences int
	// Share scales the slowdown that is tolerated: 1, or by tenant (Share).
	Share float64
}

// Decider decides for one replica. Cost and Capacity are required; without them all is
// admitted.
type Decider struct {
	Cost     policies.Cost
	Capacity policies.Tokens // of the KV cache
	Batch    int             // requests that run at once; 0 for no limit
	Slowdown float64         // 0 means DefaultSlowdown
}

// Verdict is a decision and its reasons.
type Verdict struct {
	Admit bool
	// Wait is the predicted time until the prefill begins; Latency and Alone are the
	// request's predicted latency, and that on an idle replica that has nothing of its prompt
	// cached: what clients expect does not depend on caches. All are in seconds.
	Wait, Latency, Alone float64
	// Retry is after how many seconds the request might be admitted; 0 if it is.
	Retry int
}

// Decide returns whether the replica takes the request.
func (d Decider) Decide(w Work, q Request) Verdict {
	if d.Cost.D0 <= 0 || d.Capacity <= 0 {
		return Verdict{Admit: true}
	}
	v := d.predict(w, q)
	slowdown := d.Slowdown
	if slowdown <= 0 {
		slowdown = DefaultSlowdown
	}
	excess := v.Wait - tolerated(v, w.Alone, float64(slowdown*q.Share))
	if v.Admit = w.Requests == 0 || v.Wait <= minWait || excess <= 0; !v.Admit {
		v.Retry = int(min(max(math.Ceil(excess), 1), maxRetry))
	}
	return v
}

// tolerated returns for how long a request may wait: what the slowdown leaves beside its own
// prefill and tokens. It differs between long and short requests by a factor of two at most
// around the usual one: if long ones could wait for much longer, they would crowd out the
// short ones of an overloaded replica, which then finishes fewer requests.
func tolerated(v Verdict, usual, slowdown float64) float64 {
	alone := v.Alone
	if usual > 0 {
		alone = min(max(alone, usual/2), usual)
	}
	return (slowdown - (v.Latency-v.Wait)/v.Alone) * alone
}

// predict returns a verdict without Admit and Retry. Requests ahead end at the pace of
// the batch, so that KV and places in the batch become free at an even rate.
func (d Decider) predict(w Work, q Request) Verdict {
	own, batch := float64(max(q.Sequences, 1)), float64(d.Batch)
	if batch <= 0 {
		batch = math.Inf(1)
	}
	c, length := d.Cost, float64(q.Input)+float64(own*float64(q.Output))
	ahead, room := float64(w.Demand)+length, float64(d.Capacity)
	n := float64(w.Requests) + own
	beyond := max(0, n-batch) // sequences without a place
	running := n - beyond
	if ahead > room {
		running = min(running, n*room/ahead)
	}
	pace := max(c.D0+float64(c.D1*running)+float64(c.D4*min(ahead, room)), w.Iteration)
	output := float64(w.Output)
	if output == 0 {
		output = float64(q.Output)
	}
	turn := output * pace // of the KV cache and of the batch
	input, cached := float64(q.Input), float64(min(q.Cached, q.Input))
	whole := float64(c.D2*input) + float64(c.D3*input*input)/float64(max(q.Prompts, 1))
	prefill := whole - float64(c.D2*cached) - float64(c.D3*cached*cached)
	v := Verdict{Wait: max(max(0, ahead-room)/room*turn, float64(c.D2*float64(w.Waiting)))}
	if beyond > 0 {
		v.Wait = max(v.Wait, beyond/batch*turn)
	}
	v.Latency = v.Wait + prefill + float64(float64(q.Output)*pace)
	together := max(min(own, batch, own*room/max(length, 1)), 1) // of its own sequences
	v.Alone = max(whole+float64(float64(own/together*float64(q.Output))*(c.D0+float64(c.D1*together)+float64(c.D4*length))), c.D0)
	return v
}

// Tenant is what an operator grants one tenant.
type Tenant struct {
	// Weight is its share of a full replica, relative to other tenants'; at least 1.
	Weight int
	// Level is its priority: 0 is the first; the tolerated slowdown of level n is that
	// of level 0 divided by n+1, so that it is refused first.
	Level int
}

// Share returns the Share of a tenant's request: 1 for the only tenant, up to maxShare for one
// that has less than its part of the demand, so that another one which has filled the
// replica does not keep it out, and less than 1 for one that has more; then by level.
func Share(t Tenant, own, all policies.Tokens, weights int) float64 {
	share := maxShare
	if own > 0 {
		fair := float64(max(t.Weight, 1)) / float64(max(weights, t.Weight, 1))
		share = min(share, fair*float64(all)/float64(own))
	} else if all <= 0 {
		share = 1
	}
	return share / float64(1+max(t.Level, 0))
}
