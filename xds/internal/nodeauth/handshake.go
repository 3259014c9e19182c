package nodeauth

import (
	"errors"
	"io"
	"net"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/policies/identity"
)

// handshakes are a server's credentials that tell of clients whose certificate
// is not believed, or who have none: gRPC itself drops them in silence.
type handshakes struct {
	credentials.TransportCredentials
	notes *notes
}

// ServerHandshake implements credentials.TransportCredentials.
func (h handshakes) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := h.TransportCredentials.ServerHandshake(conn)
	if err != nil && told(err) {
		h.notes.refused(conn.RemoteAddr(), identity.ID{}, "", err)
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.notes}
}

// told reports whether an operator should know of the end of a handshake: not of
// probes that only connect, nor of clients that did not like the server and know
// so themselves.
func told(err error) bool {
	var network net.Error // an alert of the client's is one, too
	return !errors.As(err, &network) && !errors.Is(err, io.EOF)
}
