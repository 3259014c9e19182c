package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/policies/policytest/issuer"
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

func TestConformanceIdentities(t *testing.T) {
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
	source := newEnd(t, small, identityConfig(a, a.ComponentCertificate(t, identity.Migrator, "a")))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- source.Transport.Run(ctx) }()
	var offer transport.Offer
	for err := errors.New("not yet"); err != nil; {
		offer, err = source.Transport.Export(transport.Grant{Migration: "a/1", Receiver: "b", Deadline: time.Now().Add(time.Minute)})
	}
	offer.Source = "a"
	open := func(own tls.Certificate, offer transport.Offer) error {
		p, err := newEnd(t, small, identityConfig(a, own)).Transport.Open(ctx, "b", offer)
		if err == nil {
			p.Close()
		}
		return err
	}
	for name, own := range map[string]tls.Certificate{
		"another replica's": a.ComponentCertificate(t, identity.Migrator, "c"), "a proxy's of that name": a.ComponentCertificate(t, identity.Proxy, "b"),
		"of another domain": a.Certificate(t, "spiffe://other.test/migrator/b"), "without a name": a.Certificate(t),
	} {
		if err := open(own, offer); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("with a certificate %s: %v, want %v", name, err, transport.ErrRefused)
		}
	}
	own := a.ComponentCertificate(t, identity.Migrator, "b")
	moved := offer
	moved.Source = "d"
	if err := open(own, moved); err == nil || !strings.Contains(err.Error(), "migrator/d is wanted") {
		t.Errorf("the source is another replica: %v", err)
	}
	if err := open(own, offer); err != nil {
		t.Errorf("the receiver, after all rejected attempts: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
