package pickerserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/big"
	"path/filepath"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
)

// selfSignedLifetime is how long a self-signed certificate is valid; no client can verify it, so
// it only has to outlive the process.
const selfSignedLifetime = 10 * 365 * 24 * time.Hour

// Credentials are the certificate of a picker's server. The zero value is plain text.
type Credentials struct {
	config *tls.Config                     // nil: plain text
	follow func(ctx context.Context) error // follows the files of the certificate; nil: there are none
}

// Credentials returns the certificate of the picker's server: none on loopback, unless one is asked for. own are the
// fleet's certificates, nil if there are none.
func (f *Flags) Credentials(own *certs.Provider, log *slog.Logger) (c Credentials, err error) {
	local := adminserver.IsLoopback(f.Address(1))
	switch {
	case f.CertPath != "":
		files, err := certs.NewDownstream(certs.DownstreamConfig{
			Cert: filepath.Join(f.CertPath, "tls.crt"), Key: filepath.Join(f.CertPath, "tls.key"), Logger: log,
		})
		if err != nil {
			return c, fmt.Errorf("--cert-path: %w", err)
		}
		c.config, c.follow = files.TLS(), func(ctx context.Context) error { return files.Run(ctx, nil) }
	case local && !f.Secure:
	case own != nil:
		c.config = own.ServerConfig("h2")
	case f.Secure:
		certificate, err := selfSigned(time.Now())
		if err != nil {
			return c, fmt.Errorf("--secure-serving: %w", err)
		}
		c.config = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	default:
		return c, fmt.Errorf("--host %s: not a loopback address: set --cert-path, --secure-serving or, with a fleet file, its tls, "+
			"because prompts pass this server", f.Host)
	}
	return c, nil
}

// selfSigned returns a new certificate that encrypts and proves nothing.
func selfSigned(now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{"cascade-epp"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
