package frontend

import (
	"encoding/binary"
	"encoding/json"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// Target is a replica where a request can run. The zero value is the own engine.
type Target struct {
	Replica policies.ReplicaID
	// Address is host:port of the replica's peer listener; "" for the own engine.
	Address string
	// Prefill says that the replica only computes the prompt of a request that starts there:
	// it moves to the own replica with its first token, or to another one.
	Prefill bool
}

// Placer chooses where a request starts.
type Placer interface {
	// Prefills reports whether Place may return a prefill replica. Only then does Place
	// learn how much of a request's prompt the own engine has cached, as Request.Cached.
	Prefills() bool
	// Place returns the peer to forward the request to, or the zero Target for
	// the own engine. It is called on the request's goroutine, by many at once,
	// and must not block. If the peer refuses or fails before its first token,
	// only time is lost: the own engine then serves the request.
	Place(policies.Request) Target
}

// wordBytes is how many bytes of a prompt's text count as one token when prefixes of texts
// are compared.
const wordBytes = 4

// promptText returns the text of a request's prompt as words that prefixes can be compared
// by; nil while there are no prefill replicas, for which alone it is needed before the
// engine has counted the prompt.
func (srv *Server) promptText(req *openai.Request) []uint32 {
	if srv.cfg.Placer == nil || !srv.cfg.Placer.Prefills() {
		return nil
	}
	text := req.Prompt()
	words := make([]uint32, 0, len(text)/wordBytes)
	for ; len(text) >= wordBytes; text = text[wordBytes:] {
		words = append(words, binary.LittleEndian.Uint32(text))
	}
	return words
}

// place returns where a request starts. text is as promptText returns it; plain says that its
// answer is no stream, so that it cannot move later.
func (srv *Server) place(r policies.Request, text []uint32, plain bool) Target {
	if srv.cfg.Placer == nil {
		return Target{}
	}
	if len(text) > 0 {
		known := srv.promptTexts.Known(r.Model, text)
		r.Cached = policies.Tokens(float64(r.Input) * float64(known) / float64(len(text)))
	}
	if plain {
		r.Features |= policies.HiddenTokens
	}
	to := srv.normalize(srv.cfg.Placer.Place(r))
	if to.Address == "" || to.Prefill {
		srv.promptTexts.Add(r.Model, text) // the own engine will have it
	}
	return to
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
