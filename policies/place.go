package policies

// Arrival is a request before its first token, and what the front that
// accepted it knows when it decides where the request starts.
type Arrival struct {
	Request Request
	Hops    int       // how often the request was forwarded already
	Own     Candidate // the front's own replica
	// Peers are other replicas that could take it, of any stage.
	Peers []Candidate
}

// Candidate is a replica where a request could start.
type Candidate struct {
	ID        ReplicaID
	Low, High Tokens // the lengths [Low, High) of its stage
	Waiting   Tokens // uncached prompt tokens accepted there and not yet prefilled
	Load      Tokens // KV in use and promised
	Prefix    Tokens // leading prompt tokens of this request that it has cached
	Draining  bool
}

// Placer chooses where a request starts that has not produced a token.
type Placer interface {
	// Place returns the peer to forward the request to, or "" for the own
	// replica. It never forwards twice: with Hops above 0 it returns "". It is
	// pure and does not keep the peers.
	Place(Arrival) ReplicaID
}
