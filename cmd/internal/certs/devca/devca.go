// Package devca is a certificate authority for development: it issues the
// certificates of mutual TLS between Cascade's components.
//
// Create an Authority with New or Load, and write the certificate of each component
// with Issue.
//
// It is not for production: the key of the authority is in a file, certificates
// cannot be revoked, and nothing renews them. In production the issuer that is
// there already (SPIRE, cert-manager, Vault) issues the certificates: one URI name
// each (internal/identity), for servers and clients.
package devca

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/internal/identity"
)

// Lifetimes of certificates.
const (
	AuthorityLifetime = 365 * 24 * time.Hour
	LeafLifetime      = 30 * 24 * time.Hour
	// backdate makes certificates valid for clocks that are behind.
	backdate = 5 * time.Minute
)

// The names of the files of an authority and of a component.
const (
	AuthorityCert = "ca.pem"
	AuthorityKey  = "ca-key.pem"
	Cert          = "cert.pem"
	Key           = "key.pem"
)

// Authority issues certificates of a trust domain.
type Authority struct {
	trustDomain string
	cert        *x509.Certificate
	key         crypto.Signer
}

// New returns a new authority that is valid for AuthorityLifetime.
func New(trustDomain string, now time.Time) (*Authority, error) {
	if err := identity.CheckTrustDomain(trustDomain); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Cascade development authority of " + trustDomain},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(AuthorityLifetime),
		URIs: []*url.URL{{Scheme: "spiffe", Host: trustDomain}}, // Load finds the trust domain here
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Authority{trustDomain, cert, key}, err
}

// Load reads the authority that Save wrote into dir.
func Load(dir string) (*Authority, error) {
	cert, err := read(filepath.Join(dir, AuthorityCert), x509.ParseCertificate)
	if err != nil {
		return nil, err
	}
	key, err := read(filepath.Join(dir, AuthorityKey), x509.ParsePKCS8PrivateKey)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok || !signer.PublicKey.Equal(cert.PublicKey) || len(cert.URIs) != 1 {
		return nil, fmt.Errorf("%s: %s and %s do not belong to one authority of this command", dir, AuthorityCert, AuthorityKey)
	}
	return &Authority{cert.URIs[0].Host, cert, signer}, nil
}

// read reads the first PEM block of a file.
func read[T any](path string, parse func([]byte) (T, error)) (v T, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return v, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return v, fmt.Errorf("%s contains no PEM block", path)
	}
	if v, err = parse(block.Bytes); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return v, err
}

// TrustDomain returns the trust domain of the authority's certificates.
func (a *Authority) TrustDomain() string { return a.trustDomain }

// NotAfter returns the time at which the authority expires.
func (a *Authority) NotAfter() time.Time { return a.cert.NotAfter }

// Save writes the authority's certificate and key into dir, which it creates.
func (a *Authority) Save(dir string) error {
	key, err := x509.MarshalPKCS8PrivateKey(a.key)
	if err != nil {
		return err
	}
	return save(dir, AuthorityCert, a.cert.Raw, AuthorityKey, key)
}

// Issue writes a new key and certificate of a component into dir, which it
// creates. Besides the identity, the certificate carries hosts, names or IP
// addresses, for clients that verify those. It is valid for LeafLifetime, or until
// the authority expires.
func (a *Authority) Issue(dir string, id identity.ID, hosts []string, now time.Time) error {
	if id.TrustDomain != a.trustDomain {
		return fmt.Errorf("%s: the authority issues certificates of %s only", id, a.trustDomain)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := serialNumber()
	if err != nil {
		return err
	}
	uri, err := url.Parse(id.String())
	if err != nil {
		return err
	}
	until := now.Add(LeafLifetime)
	if a.cert.NotAfter.Before(until) {
		until = a.cert.NotAfter
	}
	if !until.After(now) {
		return errors.New("the authority has expired; create a new one")
	}
	template := &x509.Certificate{
		SerialNumber: serial, NotBefore: now.Add(-backdate), NotAfter: until, URIs: []*url.URL{uri},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return save(dir, Cert, cert, Key, secret)
}

func serialNumber() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	return n.Add(n, big.NewInt(1)), nil
}

// save writes a certificate and its key, each atomically. Readers check that the
// two match.
func save(dir, certName string, cert []byte, keyName string, key []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, keyName), "PRIVATE KEY", key, 0o600); err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, certName), "CERTIFICATE", cert, 0o644)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	return atomicfile.Write(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
}
