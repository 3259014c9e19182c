package testkit

import (
	"cmp"
	"net"
	"net/http"
	"testing"
)

// ServeHTTP runs a server of HTTP/1.1 and HTTP/2, both in plain text, at an address, "" for any free one, until the end
// of the test. It returns the address. When stop returns, the server and its connections have ended.
func ServeHTTP(t testing.TB, s *http.Server, address string) (at string, stop func()) {
	t.Helper()
	l := Must(net.Listen("tcp", cmp.Or(address, "127.0.0.1:0")))
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	stop = func() { s.Close(); <-done }
	t.Cleanup(stop)
	return l.Addr().String(), stop
}
