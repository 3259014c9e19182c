package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
)

// selfSignedLifetime is how long a self-signed certificate is valid; no client can verify it, so
// it only has to outlive the process.
const selfSignedLifetime = 10 * 365 * 24 * time.Hour

// credentials returns the TLS options of the picker's server: none on loopback, unless they are
// asked for.
func (p *eppFlags) credentials(own *certs.Provider) ([]grpc.ServerOption, error) {
	local := isLoopback(p.address(1))
	var config *tls.Config
	switch {
	case p.certPath != "":
		files := certFiles{filepath.Join(p.certPath, "tls.crt"), filepath.Join(p.certPath, "tls.key")}
		if _, err := files.load(nil); err != nil {
			return nil, fmt.Errorf("--cert-path: %w", err)
		}
		config = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.load}
	case local && !p.secure:
		return nil, nil
	case own != nil:
		config = own.ServerConfig("h2")
	case p.secure:
		certificate, err := selfSigned(time.Now())
		if err != nil {
			return nil, fmt.Errorf("--secure-serving: %w", err)
		}
		config = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	default:
		return nil, fmt.Errorf("--host %s: not a loopback address: set tls in the fleet file, --cert-path or --secure-serving, because prompts pass this server", p.host)
	}
	return []grpc.ServerOption{grpc.Creds(credentials.NewTLS(config))}, nil
}

// certFiles are the PEM files of a certificate that others renew.
type certFiles struct{ cert, key string }

// load reads the files. Connections of gateways are few and long, so each handshake reads
// them anew and a renewed certificate needs no restart.
func (f certFiles) load(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(f.cert, f.key)
	return &c, err
}

// selfSigned returns a new certificate that encrypts and proves nothing.
func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{"cascade-epp"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
