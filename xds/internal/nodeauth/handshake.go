package nodeauth

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// ErrPlainText refuses a client without TLS.
var ErrPlainText = errors.New("it speaks plain text, and this address requires TLS: set tls in its configuration")

// loggingCredentials are server credentials that log clients without a valid
// certificate, which gRPC itself drops silently.
type loggingCredentials struct {
	credentials.TransportCredentials
	authenticator *Authenticator
}

// ServerHandshake implements credentials.TransportCredentials.
func (h loggingCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := h.TransportCredentials.ServerHandshake(conn)
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) && len(unverified.UnverifiedCertificates) > 0 {
		err = fmt.Errorf("certificate %s is not accepted: %w", identity.Describe(unverified.UnverifiedCertificates[0]), unverified.Err)
	}
	if errors.As(err, new(tls.RecordHeaderError)) {
		err = ErrPlainText
	}
	if err != nil && isReportable(err) {
		h.authenticator.record(conn.RemoteAddr(), identity.ID{}, "", err)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (h loggingCredentials) Clone() credentials.TransportCredentials {
	return loggingCredentials{h.TransportCredentials.Clone(), h.authenticator}
}

// isReportable reports whether the end of a handshake concerns the operator.
// Probes that only connect do not, nor do clients that rejected the server,
// which report that themselves.
func isReportable(err error) bool {
	var network net.Error // a TLS alert from the client is one, too
	return !errors.As(err, &network) && !errors.Is(err, io.EOF)
}
