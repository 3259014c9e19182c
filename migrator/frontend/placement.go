package frontend

import (
	"encoding/json"

	"github.com/cascadeinfer/cascade/policies"
)

// Target is a replica where a request can run. The zero value is the own
// engine.
type Target struct {
	Replica policies.ReplicaID
	// Address is host:port of the replica's peer listener; "" for the own engine.
	Address string
}

// Placer chooses where a request starts that has not produced a token.
type Placer interface {
	// Place returns the peer to forward the request to, or the zero Target for
	// the own engine. It is called on the request's goroutine, by many at once,
	// and must not block. A peer that refuses or fails before its first token
	// costs time only: the own engine then serves the request.
	Place(policies.Request) Target
}

// Rescuer names replicas for streams whose engine was lost.
type Rescuer interface {
	// Rescue returns where the stream may go on by re-prompting, and false when
	// there is nowhere. tried are the replicas that failed it, the one that was
	// lost included; the own replica is named like any other. It is called on
	// the stream's goroutine, by many at once, and must not block.
	Rescue(r policies.Request, tried []policies.ReplicaID) (Target, bool)
}

// Adopter knows the reservations that live moves have filled at the own engine.
type Adopter interface {
	// Adopt returns the kv_transfer_params with which the own engine takes over
	// the request that the move has brought, named as its front names it, for
	// that front. An error says that there is nothing to take over (any more). It is called on
	// the request's goroutine and must not block.
	Adopt(move, request string, front policies.ReplicaID) (params json.RawMessage, err error)
}
