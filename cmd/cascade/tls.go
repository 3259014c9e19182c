package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/credentials/tls/certprovider"
	"google.golang.org/grpc/credentials/tls/certprovider/pemfile"

	"github.com/cascadeinfer/cascade/cmd/config"
)

// tlsRefresh is how often the PEM files are looked at again, so that rotated
// certificates are taken up without a restart.
const tlsRefresh = 10 * time.Second

// tlsTimeout bounds one look at the PEM files inside a handshake.
const tlsTimeout = 5 * time.Second

// identity is the mutual TLS of one process: both sides of its connections,
// from rotating files. A nil identity means plaintext, which components accept
// on loopback only.
type identity struct{ provider certprovider.Provider }

// newIdentity watches the files; close stops that. It returns nil where the
// fleet file configures no TLS.
func newIdentity(c config.TLS) (*identity, error) {
	if c.Cert == "" {
		return nil, nil
	}
	p, err := pemfile.NewProvider(pemfile.Options{CertFile: c.Cert, KeyFile: c.Key, RootFile: c.CA, RefreshDuration: tlsRefresh})
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	id := &identity{provider: p}
	if _, err := id.material(); err != nil {
		p.Close()
		return nil, err
	}
	return id, nil
}

func (id *identity) close() {
	if id != nil {
		id.provider.Close()
	}
}

func (id *identity) material() (*certprovider.KeyMaterial, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tlsTimeout)
	defer cancel()
	m, err := id.provider.KeyMaterial(ctx)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	if len(m.Certs) == 0 {
		return nil, errors.New("tls: the certificate file holds no certificate")
	}
	return m, nil
}

// server returns the configuration of a listener that demands a certificate
// of the fleet's authorities; nil for plaintext.
func (id *identity) server() *tls.Config {
	if id == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m, err := id.material()
			if err != nil {
				return nil, err
			}
			return &tls.Config{
				MinVersion:   tls.VersionTLS13,
				NextProtos:   []string{"h2", "http/1.1"},
				Certificates: m.Certs,
				ClientAuth:   tls.RequireAndVerifyClientCert,
				ClientCAs:    m.Roots,
			}, nil
		},
	}
}

// client returns the configuration of a connection to another component; nil
// for plaintext. The peer's certificate must chain to the fleet's present
// authorities and carry the dialled name.
func (id *identity) client() *tls.Config {
	if id == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			m, err := id.material()
			if err != nil {
				return nil, err
			}
			return &m.Certs[0], nil
		},
		// The roots rotate, so the built-in verification against a fixed pool
		// is replaced by the same verification against the present one.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			m, err := id.material()
			if err != nil {
				return err
			}
			opts := x509.VerifyOptions{Roots: m.Roots, DNSName: cs.ServerName, Intermediates: x509.NewCertPool()}
			for _, c := range cs.PeerCertificates[1:] {
				opts.Intermediates.AddCert(c)
			}
			_, err = cs.PeerCertificates[0].Verify(opts)
			return err
		},
	}
}
