package tcp

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
)

// identityConfig returns the Config of a replica's migrator.
func identityConfig(a *issuer.Authority, own tls.Certificate) Config {
	return Config{
		TLS: a.ServerTLS(own), TrustDomain: issuer.TrustDomain,
		ClientTLS: func(source policies.ReplicaID, _ string) *tls.Config {
			return a.ClientTLS(own, identity.Matcher{TrustDomain: issuer.TrustDomain, Role: identity.Migrator, Name: string(source)})
		},
	}
}

func TestConformanceTLS(t *testing.T) {
	a := issuer.New(t)
	source, target := a.ComponentCertificate(t, identity.Migrator, "a"), a.ComponentCertificate(t, identity.Migrator, string(transporttest.Receiver))
	transporttest.Run(t, func(t *testing.T, from, to transport.Layout) transporttest.Pair {
		return transporttest.Pair{Source: newEnd(t, from, identityConfig(a, source)), Target: newEnd(t, to, identityConfig(a, target))}
	})
}

// TestAnotherReplicasCertificate checks that a ticket is worth nothing with the
// certificate of another replica, and that presenting it so does not use it up.
func TestAnotherReplicasCertificate(t *testing.T) {
	a := issuer.New(t)
	self := string(transporttest.Receiver)
	end := func(own tls.Certificate) transporttest.End { return newEnd(t, small, identityConfig(a, own)) }
	l := transporttest.Start(t, transporttest.Pair{Source: end(a.ComponentCertificate(t, identity.Migrator, "a")), Target: newEnd(t, small, Config{})})
	offer := l.Export(l.Grant())
	offer.Source = "a"
	open := func(own tls.Certificate, offer transport.Offer) error {
		p, err := end(own).Transport.Open(t.Context(), transporttest.Receiver, offer)
		if err == nil {
			p.Close()
		}
		return err
	}
	for name, own := range map[string]tls.Certificate{
		"another replica's": a.ComponentCertificate(t, identity.Migrator, "c"), "a proxy's of that name": a.ComponentCertificate(t, identity.Proxy, self),
		"of another domain": a.Certificate(t, "spiffe://other.test/migrator/"+self), "without a name": a.Certificate(t),
	} {
		if err := open(own, offer); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("with a certificate %s: %v, want %v", name, err, transport.ErrRefused)
		}
	}
	own := a.ComponentCertificate(t, identity.Migrator, self)
	moved := offer
	moved.Source = "d"
	if err := open(own, moved); err == nil || !strings.Contains(err.Error(), "migrator/d is wanted") {
		t.Errorf("the source is another replica: %v", err)
	}
	if err := open(own, offer); err != nil {
		t.Errorf("the receiver, after all rejected attempts: %v", err)
	}
}
