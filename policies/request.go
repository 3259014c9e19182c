package policies

// Request is what a policy may know about one request. Lengths are estimates until
// the engine has reported the exact values.
type Request struct {
	ID        string // unique at its front end
	Model     string // as the client named it
	Input     Tokens // prompt length
	Cached    Tokens // prompt tokens found in a prefix cache, ≤ Input
	Output    Tokens // tokens generated so far
	MaxOutput Tokens // the client's max_tokens, 0 when it set none
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
//  2. Iteration is finite and not negative.
type Load struct {
	Running   int     // requests that have produced a first token
	Waiting   int     // requests accepted and not yet producing
	Held      Tokens  // Σ present length over running requests: KV in use
	Promised  Tokens  // Σ length over requests accepted but not yet running
	Iteration float64 // seconds between a request's tokens, recent mean; 0 when idle
}

// Validate reports the first broken invariant, or nil.
func (l Load) Validate() error {
	switch {
	case l.Running < 0 || l.Waiting < 0 || l.Held < 0 || l.Promised < 0:
		return &Violation{"load", "1: counts must not be negative"}
	case !finite(l.Iteration) || l.Iteration < 0:
		return &Violation{"load", "2: iteration time must be finite and not negative"}
	}
	return nil
}
