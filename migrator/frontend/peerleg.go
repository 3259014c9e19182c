package frontend

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// servePeerLeg runs a peer's leg on the own engine and relays the engine's bytes,
// which the front end that owns the client parses. It adds the count of the
// tokens here.
func (srv *Server) servePeerLeg(w http.ResponseWriter, r *http.Request, body []byte, memory *httpserver.Share) {
	e := openai.EndpointOf(r.URL.Path)
	lr, err := readLegRequest(e, r.Header)
	if err != nil {
		srv.log.Warn("peer's leg refused", "error", err)
		refuseRequest(w, err.Error())
		return
	}
	req, err := srv.parseRequest(srv.dialect(), e, body)
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
		lr.arrival = srv.estimateArrival(r.Header, &req, body)
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
	if err == nil {
		w.Header().Del(length.RefusedHeader)
	}
	switch {
	case err != nil && r.Context().Err() != nil: // see answerUnanswered
	case err != nil:
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
	out := newEventWriter(w, openai.Edit{})
	out.begin(b.header)
	for c, err := b.first, error(nil); err == nil; c, err = b.leg.next() {
		if out.relay(c, openai.Edit{}) != nil {
			return
		}
		if c.Done {
			b.leg.drainAndClose()
			return
		}
	}
}

// withPeerIdentity accepts a leg only if it names a front end and, with a trust domain,
// comes with the certificate of that front end's migrator. That covers RequestHeader,
// which begins with the same name. Every answer is a refusal to the front end, which goes on elsewhere, unless it is
// the engine's.
func (srv *Server) withPeerIdentity(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(length.RefusedHeader, length.RefusedUnbegun)
		err := errNoForward
		if claim := r.Header.Get(ForwardHeader); claim != "" {
			err = srv.checkPeer(r, claim)
		}
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		srv.refuseIdentity(w, r, "peer's leg refused", err)
	})
}

// withClientIdentity accepts only requests of proxies and operators, if clients use TLS and there is a trust domain.
func (srv *Server) withClientIdentity(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || srv.cfg.TrustDomain == "" {
			next.ServeHTTP(w, r)
			return
		}
		id, err := identity.Matcher{TrustDomain: srv.cfg.TrustDomain}.CheckCertificate(leafOf(r))
		if err == nil && id.Role != identity.Proxy && id.Role != identity.Operator {
			err = fmt.Errorf("%s may send no requests: the certificate of a proxy or an operator is wanted", id)
		}
		if err != nil {
			srv.refuseIdentity(w, r, "client refused", err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// leafOf returns the client certificate of a request, or nil.
func leafOf(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

// refuseIdentity answers 403 to a client whose certificate is not accepted, and logs event.
func (srv *Server) refuseIdentity(w http.ResponseWriter, r *http.Request, event string, err error) {
	srv.log.Warn(event, "peer", r.RemoteAddr, "error", err)
	writeProblem(w, openai.Problem{Status: http.StatusForbidden, Kind: "PermissionDeniedError", Message: err.Error()})
}

// checkPeer checks that a request comes with the certificate of the migrator whose front
// end it claims to be from. Without a trust domain there is nothing to check.
func (srv *Server) checkPeer(r *http.Request, claim string) error {
	if srv.cfg.TrustDomain == "" {
		return nil
	}
	// A claim that is not a valid name matches no certificate here.
	want := identity.Matcher{TrustDomain: srv.cfg.TrustDomain, Role: identity.Migrator, Name: claim[:min(len(claim), maxName+1)]}
	_, err := want.CheckCertificate(leafOf(r))
	return err
}
