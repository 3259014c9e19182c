package frontend

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// servePeerLeg runs a peer's leg on the own engine and relays the engine's bytes,
// which the front end that owns the client parses. It adds the count of the
// tokens here.
func (srv *Server) servePeerLeg(w http.ResponseWriter, r *http.Request, e openai.Endpoint, body []byte, memory *httpserver.Share) {
	lr, err := readLegRequest(e, r.Header)
	if err != nil {
		srv.log.Warn("peer's leg refused", "error", err)
		refuseRequest(w, err.Error())
		return
	}
	req, err := srv.dialect().Parse(e, body)
	if err == nil && lr.reservation != "" {
		body, err = srv.adopt(lr, body)
	}
	if err != nil {
		srv.requestLog(r.Header).Warn("peer's leg refused", "frontend", lr.frontEnd, "request", lr.request.ID, "error", err)
		refuseRequest(w, err.Error())
		return
	}
	lr.root = srv.promptRoot(req.Model, req.CacheSalt)
	lr.request.Model, lr.request.MaxOutput, lr.minTokens = strings.Clone(req.Model), req.MaxOutput, req.MinOutput
	keeps, fetches := srv.kv().Transfers(body)
	if (keeps || fetches) && lr.arrival.Input > 0 {
		lr.arrival.HasKV, lr.fetches = true, fetches // nothing is computed for it here
	}
	if lr.arrival.Input == 0 {
		lr.keeps = keeps // after it has computed the prompt
		sent := lr.arrival
		lr.arrival = srv.estimateForwarded(r.Header, &req, body)
		var wanted policies.Tokens
		if srv.cfg.PrefixPull != nil { // the sender has chosen this replica by what it may copy of the prompt
			wanted = lr.held
		}
		prompt := srv.readPrompt(r.Context(), &req, engineHeaders(r.Header), wanted)
		lr.prompt, lr.arrival.Cached = &prompt, max(sent.Cached, prompt.cached)
		prompt.refineEstimate(&lr.arrival)
		lr.request.Prompts, lr.request.Sequences = lr.arrival.Prompts, lr.arrival.Sequences
		lr.arrival.Estimate = cmp.Or(sent.Estimate, lr.arrival.Estimate)
	} else if lr.request.MaxOutput > 0 {
		lr.request.MaxOutput += lr.arrival.Output // which the client's limit includes
	}
	lr.body, lr.plain = &payload{bytes: body, memory: memory}, !req.Stream
	b, err := srv.openLegAt(r.Context(), lr)
	switch {
	case err != nil && r.Context().Err() != nil: // see answerUnanswered
	case err != nil:
		if overloaded(err) != nil {
			w.Header().Set(length.RefusedHeader, length.RefusedUnbegun) // to the front end that forwards it
		}
		lost := losses{peer: true}
		lost.note(err)
		srv.refuseEngineFailure(w, srv.requestLog(r.Header).With("request", lr.request.ID), err, lost)
	case b.leg == nil:
		srv.relayResponse(w, b, losses{peer: true}, templateKey{}, false)
	default:
		if n := srv.outputLimit(b, e, req.MaxOutput); n > 0 {
			w.Header().Set(OutputLimitHeader, strconv.FormatInt(int64(n), 10))
		}
		srv.relayLeg(w, b)
	}
}

// adopt adds to the body of a leg the reservation that a migration has filled.
func (srv *Server) adopt(lr *legRequest, body []byte) ([]byte, error) {
	if srv.cfg.Adopter == nil {
		return nil, errors.New("this replica adopts no reservations")
	}
	params, err := srv.cfg.Adopter.Adopt(lr.reservation, lr.request.ID, lr.frontEnd)
	if err != nil {
		return nil, err
	}
	return srv.kv().Adopt(body, params, int(lr.arrival.Input))
}

// relayLeg relays the events of a leg to the front end that opened it. A leg that
// is cut ends without [DONE], so that front end knows that the answer is not
// complete and may go on elsewhere.
func (srv *Server) relayLeg(w http.ResponseWriter, b openedLeg) {
	defer b.leg.closeMoved()
	out := &eventWriter{w: w, control: http.NewResponseController(w), header: b.header}
	for c, err := b.first, error(nil); err == nil; c, err = b.leg.Next() {
		if out.relay(c, openai.Edit{}) != nil {
			return
		}
		if c.Done {
			b.leg.drainAndClose()
			return
		}
	}
}
