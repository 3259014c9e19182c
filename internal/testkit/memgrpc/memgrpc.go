// Package memgrpc connects the gRPC servers and clients of a test in memory, so that they can run in a synctest bubble.
package memgrpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// bufferSize is how many bytes a connection holds in each direction.
const bufferSize = 1 << 20

// Serve runs a server and connects to it in plain text. Both end with the test; stop ends the server earlier.
func Serve(t testing.TB, s *grpc.Server) (conn *grpc.ClientConn, stop func()) {
	t.Helper()
	l, stop := Listen(t, s)
	return Dial(t, l, insecure.NewCredentials()), stop
}

// Listen runs a server until the end of the test, or until stop is called.
func Listen(t testing.TB, s *grpc.Server) (l *bufconn.Listener, stop func()) {
	l = bufconn.Listen(bufferSize)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	stop = sync.OnceFunc(func() {
		s.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // it had not begun
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return l, stop
}

// Dial connects to a server until the end of the test.
func Dial(t testing.TB, l *bufconn.Listener, c credentials.TransportCredentials) *grpc.ClientConn {
	dial := func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }
	conn := testkit.Must(grpc.NewClient("passthrough:///memory",
		grpc.WithTransportCredentials(c), grpc.WithContextDialer(dial)))
	t.Cleanup(func() { conn.Close() })
	return conn
}
