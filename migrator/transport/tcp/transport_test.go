package tcp

import (
	"crypto/tls"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
)

func newEnd(t testing.TB, l transport.Layout, c Config) transporttest.End {
	t.Helper()
	m := transporttest.HeapMemory(l)
	c.Pool = transporttest.Pool{M: m}
	tr := testkit.Must(New(c))
	return transporttest.End{Transport: tr, Memory: m}
}

func newPair(t *testing.T, source, target transport.Layout) transporttest.Pair {
	return transporttest.Pair{Source: newEnd(t, source, Config{}), Target: newEnd(t, target, Config{})}
}

func TestConformance(t *testing.T) { transporttest.Run(t, newPair) }

func TestAllocations(t *testing.T) { transporttest.RunAllocations(t, newPair) }

// mutualTLS returns a Config in which both sides present a certificate and require one,
// whatever its identity.
func mutualTLS(t testing.TB) Config {
	t.Helper()
	a := issuer.New(t)
	c := identityConfig(a, a.ComponentCertificate(t, identity.Migrator, "fleet"))
	c.TrustDomain = ""
	return c
}

func TestConfig(t *testing.T) {
	good := mutualTLS(t)
	pool := transporttest.Pool{M: transporttest.HeapMemory(small)}
	for _, c := range []struct {
		name, want string
		config     Config
	}{
		{"no pool", "Pool", Config{}},
		{"a name", "IP:port", Config{Pool: pool, Listen: "localhost:0"}},
		{"plain text off loopback", "TLS", Config{Pool: pool, Listen: "10.0.0.1:0"}},
		{"plain text on every address", "TLS", Config{Pool: pool, Listen: "0.0.0.0:0", Advertise: "127.0.0.1"}},
		{"half of TLS", "set both", Config{Pool: pool, TLS: good.TLS}},
		{"the other half", "set both", Config{Pool: pool, ClientTLS: good.ClientTLS}},
		{"identities in plain text", "requires TLS", Config{Pool: pool, TrustDomain: "td"}},
		{"a bad trust domain", "TrustDomain", Config{Pool: pool, TLS: good.TLS, ClientTLS: good.ClientTLS, TrustDomain: "TD"}},
		{"every address without a name", "Advertise", Config{Pool: pool, Listen: "[::]:0", TLS: good.TLS, ClientTLS: good.ClientTLS}},
	} {
		if _, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error about %q", c.name, err, c.want)
		}
	}
	for _, c := range []Config{
		{Pool: pool, Listen: "[::1]:0"},
		{Pool: pool, Listen: "0.0.0.0:0", Advertise: "node-1", TLS: good.TLS, ClientTLS: good.ClientTLS},
	} {
		if _, err := New(c); err != nil {
			t.Error(err)
		}
	}
}

// TestPlainTextStaysOnLoopback checks that plain text is sent to loopback only, whatever
// a peer offers.
func TestPlainTextStaysOnLoopback(t *testing.T) {
	target := newEnd(t, small, Config{})
	for _, address := range []string{"192.0.2.1:9", "localhost:9", "example.org:9", "nothing"} {
		if _, err := target.Transport.Open(t.Context(), "b", transport.Offer{Transport: "tcp", Address: address}); err == nil || !strings.Contains(err.Error(), address) {
			t.Errorf("%s: %v", address, err)
		}
	}
	if target.Transport.CanReach("node-1", "node-2") || !target.Transport.CanReach("node-1", "node-1") {
		t.Error("without TLS it must reach its own host only")
	}
	if !newEnd(t, small, mutualTLS(t)).Transport.CanReach("node-1", "node-2") {
		t.Error("with TLS it must reach every host")
	}
}

// TestNoCertificateNoBlocks checks that a receiver without a certificate is rejected even
// by a source that does not require one in its TLS configuration.
func TestNoCertificateNoBlocks(t *testing.T) {
	c := mutualTLS(t)
	c.TLS.ClientAuth = tls.NoClientCert
	source := newEnd(t, small, c)
	with := c.ClientTLS
	c.ClientTLS = func(source policies.ReplicaID, address string) *tls.Config {
		t := with(source, address)
		t.Certificates = nil
		return t
	}
	l := transporttest.Start(t, transporttest.Pair{Source: source, Target: newEnd(t, small, c)})
	if _, err := l.OpenOffer(transporttest.Receiver, l.Export(l.Grant())); err == nil {
		t.Error("Open without a certificate succeeded")
	}
}
