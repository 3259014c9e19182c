package frontend

import (
	"cmp"
	"encoding/json"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Placer chooses where a request starts.
type Placer interface {
	// Prefills reports whether Place may return a prefill replica, and HasHolders whether any
	// peer is known to hold the KV of prompts. Unless one of them does, Place learns nothing
	// of a prompt's tokens.
	Prefills() bool
	HasHolders() bool
	// Place returns the peer to forward the request to, or the zero Target for
	// the own engine. Request.Cached is how much of the prompt the own engine holds, and steps
	// are the prompt's, as far as they are known; Place does not keep them. It is called on
	// the request's goroutine, by many at once, and must not block. If the peer refuses or
	// fails before its first token, only time is lost: the own engine then serves the request.
	Place(r policies.Request, steps []prefix.Step) policies.Target
}

// place returns where a request starts. plain says that its answer is no stream, so that it
// cannot move later.
func (srv *Server) place(r policies.Request, p *knownPrompt, plain bool) policies.Target {
	if srv.cfg.Placer == nil {
		return policies.Target{}
	}
	r.Input = max(cmp.Or(p.length, r.Input), p.known)
	r.Cached = p.cached
	if plain {
		r.Features |= policies.HiddenTokens
	}
	return srv.normalize(srv.cfg.Placer.Place(r, p.steps))
}

// Rescuer names replicas for streams whose engine was lost.
type Rescuer interface {
	// Rescue returns where the stream may go on by re-prompting, and false if
	// there is no such replica. tried are the replicas that failed it, including
	// the one that was lost; the own replica is returned like any other. Rescue
	// is called on the stream's goroutine, by many at once, and must not block.
	Rescue(r policies.Request, tried []policies.ReplicaID) (policies.Target, bool)
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
