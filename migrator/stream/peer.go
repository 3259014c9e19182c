package stream

import (
	"net/http"

	"github.com/cascadeinfer/cascade/migrator/stream/dialect"
)

// serve runs a peer's forward on the own engine and relays the engine's bytes:
// the front that owns the client understands them. What it adds is the count.
func (f *Front) serve(w http.ResponseWriter, r *http.Request, e dialect.Endpoint) {
	if r.Header.Get(ForwardHeader) == "" {
		answer(w, dialect.Problem{Status: http.StatusForbidden, Kind: "PermissionDeniedError",
			Message: "this port is for migrators; clients use the replica's own address"})
		return
	}
	body, ok := f.body(w, r)
	if !ok {
		return
	}
	arrival := f.arrival(r.Header, body)
	b, err := f.beginAt(r.Context(), e, "", r.Header, &payload{bytes: body}, arrival)
	switch {
	case err != nil && r.Context().Err() != nil:
	case err != nil:
		f.refuseFailed(w, err)
	case b.leg == nil:
		f.relay(w, b, shapeKey{}, false)
	default:
		f.carry(w, b)
	}
}

// carry relays the events of a leg to the front that asked for it. A leg that
// is cut ends without [DONE], which that front understands.
func (f *Front) carry(w http.ResponseWriter, b begun) {
	defer b.leg.Close()
	out := &events{w: w, control: http.NewResponseController(w), header: b.header}
	for c, err := b.first, error(nil); err == nil; c, err = b.leg.Next() {
		if out.write(c, dialect.Edit{}) != nil {
			return
		}
		if c.Done {
			b.leg.finish()
			return
		}
	}
}
