package peer

import (
	"crypto/tls"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// startSecured starts a node with TLS and identities; the address is the server's. Credentials, if not nil, are called and
// not used.
func startSecured(t *testing.T, a *issuer.Authority, cfg Config) (*node, string) {
	t.Helper()
	own := a.ComponentCertificate(t, identity.Migrator, string(cfg.Self))
	cfg.TrustDomain = issuer.TrustDomain
	asked := cfg.Credentials
	cfg.Credentials = func(peer policies.ReplicaID, address string) credentials.TransportCredentials {
		if asked != nil {
			asked(peer, address)
		}
		return credentials.NewTLS(a.ClientTLS(own, identity.Matcher{TrustDomain: issuer.TrustDomain, Role: identity.Migrator, Name: string(peer)}))
	}
	n := startOnTCP(t, cfg)
	server := httptest.NewUnstartedServer(n.Handler())
	server.EnableHTTP2, server.TLS = true, a.ServerTLS(own)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return n, server.Listener.Addr().String()
}

// TestNamesAreTheCertificates checks that the certificate determines a replica's identity. A
// replica with a valid certificate of its own that claims to be another is rejected: it neither
// counts as evidence that the other is alive nor as the other's new process.
func TestNamesAreTheCertificates(t *testing.T) {
	a := issuer.New(t)
	logged := &testkit.Log{}
	b, at := startSecured(t, a, Config{Self: "b", Logger: logged.Logger()})
	c, _ := startSecured(t, a, Config{Self: "c", Incarnation: 5})
	c.SetPeers(map[policies.ReplicaID]string{"b": at})
	c.Send("b", market(1))
	if g := <-b.came; g.from != "c" {
		t.Errorf("from %s", g.from)
	}
	for name, own := range map[string]tls.Certificate{
		"another replica":         a.ComponentCertificate(t, identity.Migrator, "d"),
		"the control plane":       a.ComponentCertificate(t, identity.Control, "c"),
		"another trust domain":    a.Certificate(t, "spiffe://other.test/migrator/c"),
		"one without an identity": a.Certificate(t),
	} {
		if err := openNamed(t, at, a.ClientTLS(own, identity.Matcher{TrustDomain: issuer.TrustDomain}), "c"); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s as c: %v", name, err)
		}
	}
	own := a.ComponentCertificate(t, identity.Migrator, "d")
	for _, from := range []string{"", strings.Repeat("d", 1<<20)} {
		if err := openNamed(t, at, a.ClientTLS(own, identity.Matcher{TrustDomain: issuer.TrustDomain}), from); status.Code(err) != codes.PermissionDenied || len(err.Error()) > 1024 {
			t.Errorf("a name of %d bytes: %.200v", len(from), err)
		}
	}
	if p := b.peer("c"); p.incarnation != 5 || p.incoming != 1 {
		t.Errorf("c is not as it was: %+v", p)
	}
	if got := logged.Count("stream of peer rejected"); got != 6 {
		t.Errorf("logged %d times, want each refusal", got)
	}
	c.Send("b", market(2))
	if g := <-b.came; g.from != "c" || g.GetMarket().GetNumber() != 2 {
		t.Errorf("after all these: %+v", g)
	}
	c.stop()
	b.stop()
}

// TestTheRightPeerIsReached checks that an envelope for one replica is not sent to another one at
// the same address.
func TestTheRightPeerIsReached(t *testing.T) {
	a := issuer.New(t)
	b, at := startSecured(t, a, Config{Self: "b"})
	logged := &testkit.Log{}
	c, _ := startSecured(t, a, Config{Self: "c", Logger: logged.Logger(), Credentials: func(peer policies.ReplicaID, address string) credentials.TransportCredentials {
		if peer != "d" || address != at {
			t.Errorf("credentials for %s at %s", peer, address)
		}
		return nil
	}})
	c.SetPeers(map[policies.ReplicaID]string{"d": at})
	c.Send("d", market(1))
	for logged.Count("migrator/d is wanted") == 0 {
		if t.Context().Err() != nil {
			t.Fatal("nothing is logged")
		}
	}
	if c.peer("d").connected || b.peer("c").incoming != 0 {
		t.Errorf("connected to another replica: %+v", c.peer("d"))
	}
	c.stop()
	b.stop()
}

// openNamed opens a stream with a Hello that contains a name, and returns the stream's error.
func openNamed(t *testing.T, address string, secure *tls.Config, from string) error {
	t.Helper()
	conn := testkit.Must(grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(secure))))
	defer conn.Close()
	stream, err := api.NewPeerClient(conn).Exchange(t.Context())
	if err != nil {
		return err
	}
	testkit.NoError(t, stream.Send(&api.Envelope{From: from, To: "b", Body: &api.Envelope_Hello{Hello: &api.Hello{Incarnation: 99}}}))
	_, err = stream.Recv()
	return err
}
