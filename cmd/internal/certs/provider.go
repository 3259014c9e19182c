// Package certs provides the certificates of one process from PEM files, and
// follows their rotation without a restart.
//
// A [Provider] is the mutual TLS between Cascade's components: it returns the TLS
// configurations of both sides of a connection. With a trust domain it also
// verifies identities (package internal/identity): it rejects an own certificate
// of another component, and its clients reject servers other than the component
// that they connect to. A server requires a certificate of the fleet's
// authorities; what a client may do is decided above TLS, where the claims of the
// peer are read. A [Downstream] is the certificate that proxies present to
// clients.
//
// Invariants: the material in use was complete and valid when it was read, so
// files that are half written, do not match, name another component or are not
// valid yet change nothing; a handshake uses the material that is current when it begins.
//
// The package issues no certificates; package devca does, for development.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// Config configures a Provider.
type Config struct {
	// Cert, Key and CA are PEM files: the certificate chain of the process, its
	// private key, and the authorities of the peers. Required.
	Cert, Key, CA string
	// Self is the identity that the certificate must have. Without a trust domain
	// there are no identities: certificates are verified by their authority and, of
	// servers, by the dialled host.
	Self identity.Matcher
	// Logger logs rotations, and each rejected rotation once; nil discards.
	Logger *slog.Logger
}

// Provider provides the current certificate, key and authorities of one process.
// Its methods are safe for concurrent use. A nil Provider stands for plain text.
type Provider struct {
	cfg   Config
	files watcher[material]
}

// material is the content of valid files.
type material struct {
	cert  tls.Certificate
	roots *x509.CertPool
	id    identity.ID // zero without a trust domain
	// authority is the authority whose certificate expires first.
	authority *x509.Certificate
}

// New reads the files; an error names the file and the problem. Rotations are
// followed by Run only.
func New(c Config) (*Provider, error) {
	if c.Cert == "" || c.Key == "" || c.CA == "" {
		return nil, errors.New("tls: Cert, Key and CA belong together: set all three")
	}
	k := &Provider{cfg: c, files: watcher[material]{
		paths: []string{c.Cert, c.Key, c.CA}, parse: c.parse, leaf: func(m *material) *x509.Certificate { return m.cert.Leaf }, log: c.Logger,
	}}
	if err := k.files.start(); err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return k, nil
}

// Run follows the files until ctx ends, and then returns nil. It may be called
// once.
func (k *Provider) Run(ctx context.Context) error {
	if k == nil {
		<-ctx.Done()
		return nil
	}
	k.files.run(ctx, k.expiries, func(m *material) {
		k.files.log.Info("certificate rotated", "file", k.cfg.Cert, "identity", m.name(), "until", m.cert.Leaf.NotAfter)
	})
	return nil
}

// Identity returns the identity in the process's certificate; the zero ID without
// a trust domain.
func (k *Provider) Identity() identity.ID { return k.files.current().id }

func (m *material) name() string {
	if m.id == (identity.ID{}) {
		return m.cert.Leaf.Subject.String()
	}
	return m.id.String()
}

// parse returns the material of files that are valid at now.
func (c Config) parse(contents []string, now time.Time) (*material, error) {
	cert, err := tls.X509KeyPair([]byte(contents[0]), []byte(contents[1]))
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", c.Cert, c.Key, err)
	}
	if now.After(cert.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s: the certificate expired at %s; issue a new one", c.Cert, cert.Leaf.NotAfter.Format(time.RFC3339))
	}
	m := &material{cert: cert, roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM([]byte(contents[2])) {
		return nil, fmt.Errorf("%s contains no PEM certificate", c.CA)
	}
	m.authority = earliest(authorities(contents[2]))
	if c.Self.TrustDomain != "" {
		if m.id, err = c.Self.CheckCertificate(cert.Leaf); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Cert, err)
		}
	}
	return m, nil
}
