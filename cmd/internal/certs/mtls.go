// Package certs is the mutual TLS of one process: both sides of its connections,
// from PEM files that rotate.
//
// With a trust domain it also knows who is who (policies/identity): it refuses
// own certificates that are another component's, and clients made by it refuse
// servers that are not the component they mean to reach. Whom a server lets do
// what is decided above TLS, where what a peer claims is read: every server made
// here demands a certificate of the fleet's authorities, and no more.
//
// It issues no certificates (package devca does, for trying things out).
//
// Invariants: what is in force was whole and good when it was read, so files
// that are half written, do not match, or name somebody else change nothing; a
// handshake takes the material in force when it begins.
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/policies/identity"
)

const (
	// DefaultRefresh is the time between two looks at the files.
	DefaultRefresh = 10 * time.Second
	// maxFile bounds each file in bytes.
	maxFile = 1 << 20
)

// Config is what Keys need.
type Config struct {
	// Cert, Key and CA are PEM files: the own certificate chain, its private key,
	// and the authorities of the peers. Required.
	Cert, Key, CA string
	// Self is who the own certificate must be. Without a trust domain nobody has
	// an identity: certificates count by their authority and, for servers, by the
	// host that was dialled.
	Self identity.Matcher
	// Refresh is the time between two looks at the files; 0 means 10 s.
	Refresh time.Duration
	// Logger is told of rotations, and once of each that is refused; nil discards.
	Logger *slog.Logger
}

// Provider are the certificate, key and authorities of one process, as they are now.
// The methods are safe for concurrent use, and work on nil Keys: those stand for
// plain text.
type Provider struct {
	cfg Config
	now atomic.Pointer[material]

	// Owned by Run, and by New before it.
	good    files  // what is in force was made of
	problem string // what is wrong with the files, "" for nothing
	looks   int    // that found it, in a row
}

// material is what the files held when all of them were good.
type material struct {
	cert  tls.Certificate
	roots *x509.CertPool
	id    identity.ID // zero without a trust domain
}

// files are the contents of Cert, Key and CA.
type files [3][]byte

func (f files) equal(g files) bool {
	for i := range f {
		if !bytes.Equal(f[i], g[i]) {
			return false
		}
	}
	return true
}

// New reads the files once; an error names the file and what is wrong with it.
// Nothing follows their rotation before Run.
func New(c Config) (*Provider, error) {
	if c.Cert == "" || c.Key == "" || c.CA == "" {
		return nil, errors.New("tls: Cert, Key and CA go together: name all three")
	}
	if c.Refresh < 0 {
		return nil, fmt.Errorf("tls: Refresh %v must not be negative", c.Refresh)
	}
	if c.Refresh == 0 {
		c.Refresh = DefaultRefresh
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	k := &Provider{cfg: c}
	f, err := k.read()
	if err == nil {
		var m *material
		if m, err = c.parse(f, time.Now()); err == nil {
			k.now.Store(m)
			k.good = f
			return k, nil
		}
	}
	return nil, fmt.Errorf("tls: %w", err)
}

// Run follows the files until ctx ends, and returns nil then. It may be called
// once.
func (k *Provider) Run(ctx context.Context) error {
	if k == nil {
		<-ctx.Done()
		return nil
	}
	every := time.NewTicker(k.cfg.Refresh)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
			k.look(time.Now())
		}
	}
}

// look takes up files that have changed and are good. They are not replaced all
// at once, so that bad ones are told when the next look finds them the same.
func (k *Provider) look(now time.Time) {
	f, err := k.read()
	if err == nil && f.equal(k.good) {
		k.problem = ""
		return
	}
	var m *material
	if err == nil {
		m, err = k.cfg.parse(f, now)
	}
	if err == nil {
		k.good, k.problem = f, ""
		k.now.Store(m)
		k.cfg.Logger.Info("certificate rotated", "file", k.cfg.Cert, "identity", m.name(), "until", m.cert.Leaf.NotAfter)
		return
	}
	if k.problem != err.Error() {
		k.problem, k.looks = err.Error(), 0
	}
	if k.looks++; k.looks == 2 {
		k.cfg.Logger.Warn("new certificate files are not taken up; the old ones stay in force", "error", err)
	}
}

// Identity is who the own certificate says that this process is; the zero ID
// without a trust domain.
func (k *Provider) Identity() identity.ID { return k.now.Load().id }

func (m *material) name() string {
	if m.id == (identity.ID{}) {
		return m.cert.Leaf.Subject.String()
	}
	return m.id.String()
}

// read reads the three files.
func (k *Provider) read() (f files, err error) {
	for i, path := range [...]string{k.cfg.Cert, k.cfg.Key, k.cfg.CA} {
		if f[i], err = readFile(path); err != nil {
			return files{}, err
		}
	}
	return f, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is larger than %d KiB", path, maxFile>>10)
	}
	return data, err
}

// parse makes material of files that are good at a time.
func (c Config) parse(f files, now time.Time) (*material, error) {
	cert, err := tls.X509KeyPair(f[0], f[1])
	if err != nil {
		return nil, fmt.Errorf("%s with %s: %w", c.Cert, c.Key, err)
	}
	if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Cert, err)
	}
	if now.After(cert.Leaf.NotAfter) {
		return nil, fmt.Errorf("%s: the certificate ended at %s; issue a new one", c.Cert, cert.Leaf.NotAfter.Format(time.RFC3339))
	}
	m := &material{cert: cert, roots: x509.NewCertPool()}
	if !m.roots.AppendCertsFromPEM(f[2]) {
		return nil, fmt.Errorf("%s holds no PEM certificate", c.CA)
	}
	if c.Self.TrustDomain != "" {
		if m.id, err = c.Self.CheckCertificate(cert.Leaf); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Cert, err)
		}
	}
	return m, nil
}
