package certwatch

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

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issue makes a pair with a serial number.
func issue(t *testing.T, serial int64, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: names, NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// serial is that of the certificate that a server would show.
func serial(t *testing.T, f *Files) int64 {
	t.Helper()
	c, err := f.TLS().GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf.SerialNumber.Int64()
}

// TestRotation: a new pair is taken up at the next look; half of one, and one
// that does not fit together, is logged once and changes nothing.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		cfg := Config{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
		var log bytes.Buffer
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cert1, key1 := issue(t, 1, "edge.example")
		cert2, key2 := issue(t, 2, "edge.example")
		write(t, cfg.Cert, cert1)
		write(t, cfg.Key, key1)
		f, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var told []*resources.Certificate
		done := make(chan error)
		go func() { done <- f.Run(ctx, func(c *resources.Certificate) { told = append(told, c) }) }()
		look := func() { time.Sleep(DefaultEvery); synctest.Wait() }
		look()
		if len(told) != 0 || serial(t, f) != 1 {
			t.Errorf("without a change: told %d times, serial %d", len(told), serial(t, f))
		}
		write(t, cfg.Cert, cert2)
		look()
		look()
		if len(told) != 0 || serial(t, f) != 1 || strings.Count(log.String(), "last good") != 1 {
			t.Errorf("half of a pair: told %d times, serial %d, log\n%s", len(told), serial(t, f), log.String())
		}
		write(t, cfg.Key, key2)
		look()
		look()
		if len(told) != 1 || serial(t, f) != 2 || !told[0].Equal(&resources.Certificate{Chain: cert2, Key: key2}) || f.Certificate() != told[0] {
			t.Errorf("a new pair: told %d times, serial %d", len(told), serial(t, f))
		}
		if err := os.Remove(cfg.Key); err != nil {
			t.Fatal(err)
		}
		look()
		if serial(t, f) != 2 || strings.Count(log.String(), "last good") != 2 {
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

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	cert, key := issue(t, 1, "edge.example")
	nobody, nobodys := issue(t, 3)
	_, other := issue(t, 2)
	at := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		write(t, path, b)
		return path
	}
	good := Config{Cert: at("cert", cert), Key: at("key", key)}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no certificate": {Config{Cert: filepath.Join(dir, "none"), Key: good.Key}, "none"},
		"no key":         {Config{Cert: good.Cert, Key: filepath.Join(dir, "none")}, "none"},
		"other key":      {Config{Cert: good.Cert, Key: at("other", other)}, "does not match"},
		"no name":        {Config{Cert: at("nobody", nobody), Key: at("nobodys", nobodys)}, "names nobody"},
		"no PEM":         {Config{Cert: at("text", []byte("x")), Key: good.Key}, "text"},
		"too long":       {Config{Cert: at("long", make([]byte, maxFile+1)), Key: good.Key}, "1 MiB"},
		"every":          {Config{Cert: good.Cert, Key: good.Key, Every: -1}, "every"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
