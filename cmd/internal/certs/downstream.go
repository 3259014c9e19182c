package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// DownstreamConfig configures a Downstream.
type DownstreamConfig struct {
	Cert, Key string // PEM files; required
	// Named requires a name in the certificate, as Envoy does.
	Named bool
	// Logger logs rotations, and each rejected rotation once; nil discards.
	Logger *slog.Logger
}

// Downstream provides the certificate that proxies and pickers present to clients of other owners. Its methods
// are safe for concurrent use; Run may be called once.
type Downstream struct {
	cfg   DownstreamConfig
	files watcher[downstreamPair]
}

// downstreamPair is a valid certificate and its key, as xDS and crypto/tls need
// them.
type downstreamPair struct {
	pem  *resources.Certificate
	cert *tls.Certificate
}

// NewDownstream reads the files; an error names the file and the problem.
// Rotations are followed by Run only.
func NewDownstream(cfg DownstreamConfig) (*Downstream, error) {
	d := &Downstream{cfg: cfg, files: watcher[downstreamPair]{
		paths: []string{cfg.Cert, cfg.Key}, parse: cfg.parse, leaf: func(p *downstreamPair) *x509.Certificate { return p.cert.Leaf }, log: cfg.Logger,
	}}
	if err := d.files.start(); err != nil {
		return nil, err
	}
	return d, nil
}

// Certificate returns the current certificate. The caller must not change it.
func (d *Downstream) Certificate() *resources.Certificate { return d.files.current().pem }

// TLS returns the configuration of a server that presents the certificate that is
// current at each handshake.
func (d *Downstream) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return d.files.current().cert, nil },
	}
}

// Run follows the files until ctx ends, and then returns nil. It calls changed,
// which may be nil, with every new certificate.
func (d *Downstream) Run(ctx context.Context, changed func(*resources.Certificate)) error {
	d.files.run(ctx, d.expiries, func(p *downstreamPair) {
		d.files.log.Info("downstream certificate rotated", "file", d.cfg.Cert)
		if changed != nil {
			changed(p.pem)
		}
	})
	return nil
}

// parse checks that the key belongs to the certificate and, with Named, that Envoy accepts it.
func (c DownstreamConfig) parse(contents []string, _ time.Time) (*downstreamPair, error) {
	pem := &resources.Certificate{Chain: []byte(contents[0]), Key: []byte(contents[1])}
	cert, err := tls.X509KeyPair(pem.Chain, pem.Key)
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", c.Cert, c.Key, err)
	}
	if l := cert.Leaf; c.Named && l.Subject.CommonName == "" && len(l.DNSNames)+len(l.IPAddresses)+len(l.URIs)+len(l.EmailAddresses) == 0 {
		return nil, fmt.Errorf("%s: the certificate has neither a subject name nor an alternative name, and Envoy rejects it; issue one with a DNS name", c.Cert)
	}
	return &downstreamPair{pem: pem, cert: &cert}, nil
}
