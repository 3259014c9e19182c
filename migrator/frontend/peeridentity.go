package frontend

import (
	"crypto/x509"
	"net/http"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// withPeerIdentity accepts a leg only if it comes with the certificate of the
// migrator whose front end it names. That covers RequestHeader, which begins with
// the same name. Without a trust domain it returns next.
func (srv *Server) withPeerIdentity(next http.Handler) http.Handler {
	if srv.cfg.TrustDomain == "" {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var leaf *x509.Certificate
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			leaf = r.TLS.PeerCertificates[0]
		}
		// A claim that is not a valid name matches no certificate here, except
		// for the empty one, which readLegRequest refuses.
		claim := r.Header.Get(ForwardHeader)
		want := identity.Matcher{TrustDomain: srv.cfg.TrustDomain, Role: identity.Migrator, Name: claim[:min(len(claim), maxName+1)]}
		_, err := want.CheckCertificate(leaf)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		srv.log.Warn("peer's leg refused", "peer", r.RemoteAddr, "error", err)
		writeProblem(w, openai.Problem{Status: http.StatusForbidden, Kind: "PermissionDeniedError", Message: err.Error()})
	})
}
