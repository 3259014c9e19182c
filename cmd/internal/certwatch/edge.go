// Package certwatch reads the certificate that proxies show to clients from files,
// and looks at them again, so that a renewed one needs no restart.
//
// It is not the mutual TLS between Cascade's components. It keeps one
// invariant: what it hands out was read whole, and its key belongs to its
// certificate. Files that break it are logged, and the last good pair stays.
package certwatch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// DefaultEvery is the default of Config.Every.
const DefaultEvery = 10 * time.Second

// maxFile bounds a PEM file, in bytes.
const maxFile = 1 << 20

// Config is the configuration of Files.
type Config struct {
	Cert, Key string // PEM files; required
	// Every is the time between two looks; 0 means DefaultEvery.
	Every  time.Duration
	Logger *slog.Logger // nil discards
}

// Files are a certificate and its key in files. All methods may be called from
// any goroutine; Run once.
type Files struct {
	cfg Config

	mu   sync.Mutex
	pem  *resources.Certificate
	pair *tls.Certificate
}

// New reads the files for the first time. It starts nothing. The error names
// the file that is wrong.
func New(cfg Config) (*Files, error) {
	if cfg.Every == 0 {
		cfg.Every = DefaultEvery
	}
	if cfg.Every < 0 {
		return nil, fmt.Errorf("edge: every %v: must not be negative", cfg.Every)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	f := &Files{cfg: cfg}
	if _, err := f.read(); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	return f, nil
}

// Certificate returns the last good pair. The caller must not change it.
func (f *Files) Certificate() *resources.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pem
}

// TLS is the configuration of a server that shows the last good pair, also in
// handshakes after it has changed.
func (f *Files) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.pair, nil
		},
	}
}

// Run looks at the files again and again until ctx ends, and calls changed,
// which may be nil, with every new good pair.
func (f *Files) Run(ctx context.Context, changed func(*resources.Certificate)) error {
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		news, err := f.read()
		switch {
		case err != nil && err.Error() != last:
			f.cfg.Logger.Error("the edge's certificate cannot be read; the last good one stays", "error", err)
			last = err.Error()
		case err == nil && news:
			f.cfg.Logger.Info("the edge has a new certificate", "file", f.cfg.Cert)
			if changed != nil {
				changed(f.Certificate())
			}
		}
		if err == nil {
			last = ""
		}
	}
}

// read takes the files over if they are good; news says that they differ.
func (f *Files) read() (news bool, err error) {
	chain, err := readFile(f.cfg.Cert)
	if err != nil {
		return false, err
	}
	key, err := readFile(f.cfg.Key)
	if err != nil {
		return false, err
	}
	c := &resources.Certificate{Chain: chain, Key: key}
	if f.Certificate().Equal(c) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return false, fmt.Errorf("%s with %s: %w", f.cfg.Cert, f.cfg.Key, err)
	}
	if l := pair.Leaf; l.Subject.CommonName == "" && len(l.DNSNames)+len(l.IPAddresses)+len(l.URIs)+len(l.EmailAddresses) == 0 {
		return false, fmt.Errorf("%s: the certificate names nobody, and Envoy refuses such", f.cfg.Cert)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pem, f.pair = c, &pair
	return true, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = errors.New("more than 1 MiB; a PEM file has a few kilobytes")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}
