package policies

// Arrival is a request before its first token, with what the front end that
// accepted it knows when it chooses the replica where the request starts.
type Arrival struct {
	Request Request
	Hops    int       // how often the request has been forwarded
	Own     Candidate // the front end's own replica
	// Peers are other replicas that could serve it, of any stage.
	Peers []Candidate
}

// Candidate is a replica where a request could start.
type Candidate struct {
	ID        ReplicaID
	Low, High Tokens // the lengths [Low, High) of its stage
	Waiting   Tokens // uncached prompt tokens it has accepted and not yet prefilled
	Load      Tokens // KV in use and promised
	Prefix    Tokens // leading prompt tokens of this request that it has cached
	Draining  bool
	Running   int // requests that generate tokens there, 0 if not known
	// Price is what the request costs there, its own weighted latency and by how much it delays others, in
	// nanoseconds per token; 0 if not known.
	Price int64
}

// Placer chooses the replica where a request without a first token starts.
type Placer interface {
	// Place returns the peer to forward the request to, or "" to keep it on the own
	// replica. A request is forwarded at most once: with Hops above 0 Place returns
	// "". It is pure and does not keep the peers.
	Place(Arrival) ReplicaID
}

// Target is a replica where a request can run. The zero value is this replica.
type Target struct {
	Replica ReplicaID
	Address string // host:port where other migrators reach it; "" for this replica
	// Prefill says that it is a prefill replica, where the request does not stay.
	Prefill bool
	// Cached is how many of the prompt's first tokens a peer is expected to hold.
	Cached Tokens
	// Held is how many of them the replica that has most of the prompt is expected to hold, 0 if that
	// is no more than Cached: the peer may copy them.
	Held Tokens
}
