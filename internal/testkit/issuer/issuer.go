// Package issuer issues certificates with identities for tests, in memory.
package issuer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/url"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// TrustDomain is the trust domain of the issued identities.
const TrustDomain = "fleet.test"

// Authority issues certificates. It is safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// Roots holds this authority alone.
	Roots *x509.CertPool
}

// New returns a new authority.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{Roots: x509.NewCertPool()}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	var der []byte
	der, a.key = sign(t, template, template, nil)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.Roots.AddCert(a.cert)
	return a
}

// sign signs a template with a new key's certificate by the given key, or by the new key
// itself if by is nil.
func sign(t testing.TB, template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

// Certificate issues a certificate with the given URI names, valid or not.
func (a *Authority) Certificate(t testing.TB, uris ...string) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
	}
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, u)
	}
	der, key := sign(t, template, a.cert, a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// ComponentCertificate issues the certificate of a component.
func (a *Authority) ComponentCertificate(t testing.TB, role identity.Role, name string) tls.Certificate {
	t.Helper()
	id, err := identity.New(TrustDomain, role, name)
	if err != nil {
		t.Fatal(err)
	}
	return a.Certificate(t, id.String())
}

// ServerTLS returns the configuration of a listener that requires the authority's
// certificates.
func (a *Authority) ServerTLS(own tls.Certificate) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.Roots,
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
	}
}

// ClientTLS returns the configuration of a client that accepts the identities of want.
func (a *Authority) ClientTLS(own tls.Certificate, want identity.Matcher) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true, // #nosec G402 -- VerifyConnection checks the identity instead of the host name
		VerifyConnection: func(cs tls.ConnectionState) error {
			if _, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: a.Roots}); err != nil {
				return err
			}
			_, err := want.CheckCertificate(cs.PeerCertificates[0])
			return err
		},
	}
}
