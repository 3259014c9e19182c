package nodeauth

import (
	"errors"
	"io"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/policies/identity"
)

// loggingCredentials are a server's credentials that tell of clients whose certificate
// is not believed, or who have none: gRPC itself drops them in silence.
type loggingCredentials struct {
	credentials.TransportCredentials
	refusals *refusalLog
}

// ServerHandshake implements credentials.TransportCredentials.
func (h loggingCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := h.TransportCredentials.ServerHandshake(conn)
	if err != nil && isReportable(err) {
		h.refusals.record(conn.RemoteAddr(), identity.ID{}, "", err)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (h loggingCredentials) Clone() credentials.TransportCredentials {
	return loggingCredentials{h.TransportCredentials.Clone(), h.refusals}
}

// isReportable reports whether an operator should know of the end of a handshake: not of
// probes that only connect, nor of clients that did not like the server and know
// so themselves.
func isReportable(err error) bool {
	var network net.Error // an alert of the client's is one, too
	return !errors.As(err, &network) && !errors.Is(err, io.EOF)
}
