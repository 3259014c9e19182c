package policies

// Request is what a policy may know about one request. Lengths are estimates until
// the engine has reported the exact values.
type Request struct {
	ID        string // unique at its front end
	Model     string // as the client named it
	Input     Tokens // prompt length
	Cached    Tokens // prompt tokens found in a prefix cache, ≤ Input
	Output    Tokens // tokens generated so far
	MaxOutput Tokens // of each sequence: the client's max_tokens, 0 when it set none
	// Prompts is how many prompts it has, and Sequences how many sequences its engine generates for
	// them; 0 means 1. Input and Output are sums over them once the engine has reported them.
	Prompts, Sequences int
	// Estimated is true while Input is derived from bytes, not from the engine.
	Estimated bool
	// Features pin the request to the engine that started it; see Movable.
	Features Features
}

// Length is the request's present length: its prompt and its generated tokens.
func (r Request) Length() Tokens { return r.Input + r.Output }

// Load is the present load of one replica, as its migrator counts it.
//
// Invariants, checked by Validate:
//  1. no count is negative,
//  2. Iteration is finite and not negative,
//  3. the engine uses at most its capacity.
type Load struct {
	Running   int     // requests that have produced a first token
	Waiting   int     // requests accepted and not yet producing
	Held      Tokens  // Σ present length over running requests: KV in use
	Promised  Tokens  // Σ length over requests accepted but not yet running
	Cached    Tokens  // of Promised, what a prefix cache is expected to have
	Iteration float64 // seconds between a request's tokens, recent mean; 0 when idle
	// Engine is what the engine reports of itself; the zero value where it reports nothing.
	Engine EngineLoad
}

// EngineLoad is the load of an engine by its own report, which is as old as the last read of
// its metrics: a second, or half a minute if reading them takes the engine long.
type EngineLoad struct {
	// Capacity is the size of the KV cache to count with; 0: the engine does not report
	// its KV.
	Capacity Tokens
	// KVUsed is the KV in use, where a prefix that requests share counts once. What began
	// or ended since the engine's report is added or subtracted.
	KVUsed           Tokens
	Running, Waiting int    // requests in the batch, and those that are not
	Queued           int    // of Waiting, how many waited for room at this report and the one before; known at the replica only
	Preemptions      uint64 // of requests, for want of KV, since the engine started
}

// crowdedPercent is the share of a KV cache above which an engine soon preempts.
const crowdedPercent = 95

// Busy reports whether the engine has requests in its queue or hardly any free KV: then it
// answers no other request soon.
func (e EngineLoad) Busy() bool {
	return e.Queued > 0 || e.Capacity > 0 && e.KVUsed > e.Capacity-e.Capacity/100*(100-crowdedPercent)
}

// KV returns the KV in use: by the engine's report if there is one, else the sum of lengths,
// which counts shared prefixes several times.
func (l Load) KV() Tokens {
	if l.Engine.Capacity > 0 {
		return l.Engine.KVUsed
	}
	return l.Held
}

// Validate reports the first broken invariant, or nil.
func (l Load) Validate() error {
	switch {
	case l.Running < 0 || l.Waiting < 0 || l.Held < 0 || l.Promised < 0 || l.Cached < 0:
		return &Violation{"load", "1: counts must not be negative"}
	case !finite(l.Iteration) || l.Iteration < 0:
		return &Violation{"load", "2: iteration time must be finite and not negative"}
	case l.Engine.Running < 0 || l.Engine.Waiting < 0 || l.Engine.Queued < 0 || l.Engine.KVUsed < 0 || l.Engine.Capacity < 0:
		return &Violation{"load", "1: counts must not be negative"}
	case l.Engine.KVUsed > l.Engine.Capacity:
		return &Violation{"load", "3: the engine must not use more than its capacity"}
	}
	return nil
}
