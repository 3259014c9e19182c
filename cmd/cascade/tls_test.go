package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "fleet"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue writes cert.pem, key.pem and ca.pem of a host into dir.
func (a *authority) issue(dir, host string, serial int64) config.TLS {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "part"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	files := config.TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem"), CA: filepath.Join(dir, "ca.pem")}
	for _, f := range []struct {
		path, kind string
		der        []byte
	}{{files.Cert, "CERTIFICATE", der}, {files.Key, "PRIVATE KEY", secret}, {files.CA, "CERTIFICATE", a.cert.Raw}} {
		if err := os.WriteFile(f.path, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der}), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return files
}

// keysOf reads the keys of files.
func keysOf(t *testing.T, files config.TLS, want identity.Matcher) *certs.Provider {
	t.Helper()
	keys, err := certs.New(certs.Config{Cert: files.Cert, Key: files.Key, CA: files.CA, Self: want})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestFleetUnderTLS runs the parts with mutual TLS between them, through both
// data planes, and then comes without a certificate, or with a stranger's.
func TestFleetUnderTLS(t *testing.T) {
	for name, dataPlane := range map[string]func(t *testing.T, s site){
		"proxy": func(t *testing.T, s site) {
			start(t, "proxy", "-c", s.file, "--node-id", "edge", "--log", "error")
		},
		"envoy": func(t *testing.T, s site) {
			envoytest.Binary(t)
			out := newOutput()
			if code := run(t.Context(), []string{"envoy-bootstrap", "-c", s.file, "--node-id", "edge", "--admin", "127.0.0.1:0"}, out, out); code != 0 {
				t.Fatalf("envoy-bootstrap ends with code %d", code)
			}
			boot, _ := out.read()
			envoytest.Validate(t, boot)
			envoytest.Start(t, envoytest.Config{Bootstrap: boot})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "tls: {cert: cert.pem, key: key.pem, ca: ca.pem}")
			files := newAuthority(t).issue(filepath.Dir(s.file), "127.0.0.1", 2)
			start(t, "control", "-c", s.file)
			start(t, "engine", "-c", s.file, "--replica", "r0")
			start(t, "migrator", "-c", s.file, "--replica", "r0", "--log", "error")
			awaitURL(t, "http://"+s.admin+"/readyz", "ready")
			dataPlane(t, s)
			awaitURL(t, "http://"+s.proxy+"/v1/models", "llama")
			awaitURL(t, "http://"+s.admin+"/status", `"health": "healthy".*"id": "edge"`)
			status, body, err := ask(t.Context(), http.MethodPost, "http://"+s.proxy+"/v1/completions", []byte(`{"model":"llama","prompt":"x","max_tokens":2}`))
			if err != nil || status != http.StatusOK {
				t.Fatalf("through the data plane: %d %s %v", status, body, err)
			}

			// Between migrators: in with the fleet's certificate.
			peers, scheme := keysOf(t, files, identity.Matcher{}).PeerTransport(func(string) string { return "" })
			client := &http.Client{Transport: peers, Timeout: patience}
			resp, err := client.Get(scheme + "://" + s.peers + "/nothing")
			if err != nil {
				t.Fatalf("a peer: %v", err)
			}
			resp.Body.Close()
			client.CloseIdleConnections()
			if resp.StatusCode != http.StatusNotFound {
				t.Errorf("a peer: %s", resp.Status)
			}

			stranger := keysOf(t, newAuthority(t).issue(t.TempDir(), "127.0.0.1", 2), identity.Matcher{}).ControlClientConfig("127.0.0.1")
			stranger.VerifyConnection = nil
			for _, door := range []string{s.control, s.peers} {
				if err := knock(door, &tls.Config{InsecureSkipVerify: true}); err == nil || !strings.Contains(err.Error(), "certificate required") {
					t.Errorf("%s without a certificate: %v", door, err)
				}
				if err := knock(door, stranger); err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
					t.Errorf("%s with a stranger's certificate: %v", door, err)
				}
			}
		})
	}
}

// knock opens a connection and waits for the other side to say something; nil
// means that it does, or waits.
func knock(address string, c *tls.Config) error {
	conn, err := (&tls.Dialer{Config: c}).Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// TestClientsVerifyDialledName: a certificate of the right authority for
// another host, name or IP address, is refused.
func TestClientsVerifyDialledName(t *testing.T) {
	a := newAuthority(t)
	for _, c := range []struct {
		host, dialled string
		good          bool
	}{
		{"127.0.0.1", "127.0.0.1:1", true}, {"127.0.0.2", "127.0.0.1:1", false}, {"control", "control:1", true},
		{"control", "other:1", false}, {"control", "127.0.0.1:1", false},
	} {
		keys := keysOf(t, a.issue(t.TempDir(), c.host, 2), identity.Matcher{})
		if _, err := handshake(t, keys, keys.ControlClientConfig(c.dialled)); (err == nil) != c.good {
			t.Errorf("certificate of %s, dialled %s: %v", c.host, c.dialled, err)
		}
	}
}

// handshake returns the serial number of the server's certificate.
func handshake(t *testing.T, server *certs.Provider, client *tls.Config) (int64, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	l, err := tls.Listen("tcp", "127.0.0.1:0", server.ServerConfig("h2"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		if conn, err := l.Accept(); err == nil {
			io.Copy(io.Discard, conn)
			conn.Close()
		}
	}()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := tls.Client(conn, client)
	if err := c.HandshakeContext(ctx); err != nil {
		return 0, err
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
}
