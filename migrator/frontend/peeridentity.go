package frontend

import (
	"crypto/x509"
	"fmt"
	"net/http"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// withPeerIdentity accepts a leg only if it names a front end and, with a trust domain,
// comes with the certificate of that front end's migrator. That covers RequestHeader,
// which begins with the same name.
func (srv *Server) withPeerIdentity(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
