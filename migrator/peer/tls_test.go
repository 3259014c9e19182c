package peer

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// TestTLS sends to a server that serves both HTTP/2 over TLS and HTTP/1.1.
func TestTLS(t *testing.T) {
	b := startOnTCP(t, Config{Self: "b"})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			t.Error("a request without TLS")
		}
		b.Handler().ServeHTTP(w, r)
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	cfg := Config{Self: "a", Credentials: func(peer policies.ReplicaID, address string) credentials.TransportCredentials {
		if peer != "b" || address != server.Listener.Addr().String() {
			t.Errorf("credentials for %s at %s", peer, address)
		}
		return credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})
	}}
	a := startOnTCP(t, cfg)
	a.SetPeers(map[policies.ReplicaID]string{"b": server.Listener.Addr().String()})
	a.Send("b", market(1))
	if g := <-b.came; g.from != "a" {
		t.Errorf("from %s", g.from)
	}
	// A peer that does not trust the server sends nothing.
	cfg.Self = "c"
	cfg.Credentials = func(policies.ReplicaID, string) credentials.TransportCredentials {
		return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13})
	}
	c := startOnTCP(t, cfg)
	c.SetPeers(map[policies.ReplicaID]string{"b": server.Listener.Addr().String()})
	c.Send("b", &api.Envelope{Body: &api.Envelope_Heartbeat{Heartbeat: &api.Heartbeat{}}})
	if p := c.peer("b"); p.Connected {
		t.Errorf("connected to a server that it does not trust: %+v", p)
	}
	a.stop()
	c.stop()
}
