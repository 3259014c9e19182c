package frontend

import (
	"encoding/json"

	"github.com/cascadeinfer/cascade/policies"
)

// Target is a replica where a request can run. The zero value is the own engine.
type Target struct {
	Replica policies.ReplicaID
	// Address is host:port of the replica's peer listener; "" for the own engine.
	Address string
}

// Placer chooses where a request starts.
type Placer interface {
	// Place returns the peer to forward the request to, or the zero Target for
	// the own engine. It is called on the request's goroutine, by many at once,
	// and must not block. If the peer refuses or fails before its first token,
	// only time is lost: the own engine then serves the request.
	Place(policies.Request) Target
}

// Rescuer names replicas for streams whose engine was lost.
type Rescuer interface {
	// Rescue returns where the stream may go on by re-prompting, and false if
	// there is no such replica. tried are the replicas that failed it, including
	// the one that was lost; the own replica is returned like any other. Rescue
	// is called on the stream's goroutine, by many at once, and must not block.
	Rescue(r policies.Request, tried []policies.ReplicaID) (Target, bool)
}

// Adopter knows the reservations that live migrations have filled at the own
// engine.
type Adopter interface {
	// Adopt returns the kv_transfer_params with which the own engine takes over a
	// migrated request; request is its id at the front end that owns it. The
	// error says that there is no such reservation, or none any more. Adopt is
	// called on the request's goroutine and must not block.
	Adopt(reservation, request string, frontEnd policies.ReplicaID) (params json.RawMessage, err error)
}
