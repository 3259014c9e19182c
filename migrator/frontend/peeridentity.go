package frontend

import (
	"crypto/x509"
	"net/http"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies/identity"
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
		srv.log.Warn("peer's leg refused", "peer", r.RemoteAddr, "error", err)
		writeProblem(w, openai.Problem{Status: http.StatusForbidden, Kind: "PermissionDeniedError", Message: err.Error()})
	})
}

// checkPeer checks that a request comes with the certificate of the migrator whose front
// end it claims to be from. Without a trust domain there is nothing to check.
func (srv *Server) checkPeer(r *http.Request, claim string) error {
	if srv.cfg.TrustDomain == "" {
		return nil
	}
	var leaf *x509.Certificate
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		leaf = r.TLS.PeerCertificates[0]
	}
	// A claim that is not a valid name matches no certificate here.
	want := identity.Matcher{TrustDomain: srv.cfg.TrustDomain, Role: identity.Migrator, Name: claim[:min(len(claim), maxName+1)]}
	_, err := want.CheckCertificate(leaf)
	return err
}
