package pickerserver

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

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
)

// selfSignedLifetime is how long a self-signed certificate is valid; no client can verify it, so
// it only has to outlive the process.
const selfSignedLifetime = 10 * 365 * 24 * time.Hour

// Credentials returns the TLS options of the picker's server: none on loopback, unless they are
// asked for. own are the fleet's certificates, nil if there are none.
func (f *Flags) Credentials(own *certs.Provider) ([]grpc.ServerOption, error) {
	local := adminserver.IsLoopback(f.Address(1))
	var config *tls.Config
	switch {
	case f.CertPath != "":
		files := certFiles{filepath.Join(f.CertPath, "tls.crt"), filepath.Join(f.CertPath, "tls.key")}
		if _, err := files.load(nil); err != nil {
			return nil, fmt.Errorf("--cert-path: %w", err)
		}
		config = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.load}
	case local && !f.Secure:
		return nil, nil
	case own != nil:
		config = own.ServerConfig("h2")
	case f.Secure:
		certificate, err := selfSigned(time.Now())
		if err != nil {
			return nil, fmt.Errorf("--secure-serving: %w", err)
		}
		config = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	default:
		return nil, fmt.Errorf("--host %s: not a loopback address: set --cert-path, --secure-serving or, with a fleet file, its tls, because prompts pass this server", f.Host)
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
