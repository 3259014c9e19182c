package certs

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// issuePair returns a self-signed certificate with a serial number, good for an hour, and its key.
func issuePair(t *testing.T, serial int64, names ...string) (cert, key []byte) {
	t.Helper()
	return issueUntil(t, time.Now().Add(time.Hour), serial, names...)
}

func issueUntil(t *testing.T, end time.Time, serial int64, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: names, NotAfter: end}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	testkit.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	testkit.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func writeFile(t *testing.T, path string, b []byte) {
	t.Helper()
	testkit.NoError(t, os.WriteFile(path, b, 0o600))
}

// serial returns the serial number of the certificate that a server presents.
func serial(t *testing.T, f *Downstream) int64 {
	t.Helper()
	c, err := f.TLS().GetCertificate(nil)
	testkit.NoError(t, err)
	return c.Leaf.SerialNumber.Int64()
}

// TestDownstreamRotation: a new pair takes effect at the next read; a certificate
// without its key is logged once and changes nothing.
func TestDownstreamRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		cfg := DownstreamConfig{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
		var log bytes.Buffer
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cert1, key1 := issuePair(t, 1, "downstream.example")
		cert2, key2 := issuePair(t, 2, "downstream.example")
		writeFile(t, cfg.Cert, cert1)
		writeFile(t, cfg.Key, key1)
		f, err := NewDownstream(cfg)
		testkit.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var changes []*resources.Certificate
		done := make(chan error)
		go func() { done <- f.Run(ctx, func(c *resources.Certificate) { changes = append(changes, c) }) }()
		read := func() { time.Sleep(Interval); synctest.Wait() }
		read()
		if len(changes) != 0 || serial(t, f) != 1 {
			t.Errorf("without a change: changed %d times, serial %d", len(changes), serial(t, f))
		}
		writeFile(t, cfg.Cert, cert2)
		read()
		read()
		if len(changes) != 0 || serial(t, f) != 1 || strings.Count(log.String(), "last valid") != 1 {
			t.Errorf("half of a pair: changed %d times, serial %d, log\n%s", len(changes), serial(t, f), log.String())
		}
		writeFile(t, cfg.Key, key2)
		read()
		read()
		if len(changes) != 1 || serial(t, f) != 2 || !changes[0].Equal(&resources.Certificate{Chain: cert2, Key: key2}) || f.Certificate() != changes[0] {
			t.Errorf("a new pair: changed %d times, serial %d", len(changes), serial(t, f))
		}
		expired, expiredKey := issueUntil(t, time.Now().Add(-time.Minute), 3, "downstream.example")
		writeFile(t, cfg.Cert, expired)
		writeFile(t, cfg.Key, expiredKey)
		read()
		read()
		if serial(t, f) != 2 || strings.Count(log.String(), "last valid") != 2 {
			t.Errorf("an expired pair: serial %d, log\n%s", serial(t, f), log.String())
		}
		testkit.NoError(t, os.Remove(cfg.Key))
		read()
		read()
		if serial(t, f) != 2 || strings.Count(log.String(), "last valid") != 3 {
			t.Errorf("no key: serial %d, log\n%s", serial(t, f), log.String())
		}
		if strings.Contains(log.String(), "PRIVATE") {
			t.Errorf("log\n%s", log.String())
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNewDownstreamRejects(t *testing.T) {
	dir := t.TempDir()
	cert, key := issuePair(t, 1, "downstream.example")
	unnamed, unnamedKey := issuePair(t, 3)
	_, other := issuePair(t, 2)
	at := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		writeFile(t, path, b)
		return path
	}
	valid := DownstreamConfig{Cert: at("cert", cert), Key: at("key", key), Named: true}
	for name, c := range map[string]struct {
		cfg  DownstreamConfig
		want string
	}{
		"no certificate": {DownstreamConfig{Cert: filepath.Join(dir, "none"), Key: valid.Key}, "none"},
		"no key":         {DownstreamConfig{Cert: valid.Cert, Key: filepath.Join(dir, "none")}, "none"},
		"other key":      {DownstreamConfig{Cert: valid.Cert, Key: at("other", other)}, "does not match"},
		"no name":        {DownstreamConfig{Cert: at("unnamed", unnamed), Key: at("unnamedKey", unnamedKey), Named: true}, "neither a subject name"},
		"no PEM":         {DownstreamConfig{Cert: at("text", []byte("x")), Key: valid.Key}, "text"},
		"too long":       {DownstreamConfig{Cert: at("long", make([]byte, maxFile+1)), Key: valid.Key}, "1 MiB"},
	} {
		if _, err := NewDownstream(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
