package frontend

import (
	"crypto/x509"
	"net/http"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// refusalLogInterval is the time between two lines about peers that lie.
const refusalLogInterval = time.Minute

// withPeerIdentity lets a leg through only if it comes with the certificate of the migrator
// whose front it names: RequestHeader, which begins with that name, is bound
// with it. Without a trust domain it is next.
func (srv *Server) withPeerIdentity(next http.Handler) http.Handler {
	if srv.cfg.TrustDomain == "" {
		return next
	}
	var told logLimiter
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var leaf *x509.Certificate
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			leaf = r.TLS.PeerCertificates[0]
		}
		// A claim that is no name is refused by readOrder; here it makes a name of
		// nobody's, except for the empty one.
		claim := r.Header.Get(ForwardHeader)
		want := identity.Matcher{TrustDomain: srv.cfg.TrustDomain, Role: identity.Migrator, Name: claim[:min(len(claim), maxName+1)]}
		_, err := want.CheckCertificate(leaf)
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		if told.due(time.Now()) {
			srv.log.Warn("a peer's leg is refused", "peer", r.RemoteAddr, "error", err)
		}
		writeProblem(w, openai.Problem{Status: http.StatusForbidden, Kind: "PermissionDeniedError", Message: err.Error()})
	})
}

// logLimiter keeps lies from filling the log.
type logLimiter struct {
	mu   sync.Mutex
	last time.Time
}

// due reports whether a line may be logged now, and takes it as logged then.
func (n *logLimiter) due(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.last) < refusalLogInterval {
		return false
	}
	n.last = now
	return true
}
