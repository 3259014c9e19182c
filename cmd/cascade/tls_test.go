package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// issue writes a new authority and a certificate of it, valid on loopback, into dir.
func issue(t *testing.T, dir string) config.TLS {
	t.Helper()
	id, err := identity.New("fleet.test", identity.Control, "part")
	testkit.NoError(t, err)
	a, err := devca.New("fleet.test", time.Now())
	if err == nil {
		err = errors.Join(a.Save(dir), a.Issue(dir, id, []string{"127.0.0.1"}, time.Now()))
	}
	testkit.NoError(t, err)
	return config.TLS{Cert: filepath.Join(dir, devca.Cert), Key: filepath.Join(dir, devca.Key), CA: filepath.Join(dir, devca.AuthorityCert)}
}

// keysOf reads certificates of components without identities.
func keysOf(t *testing.T, files config.TLS) *certs.Provider {
	t.Helper()
	keys, err := certs.New(certs.Config{Cert: files.Cert, Key: files.Key, CA: files.CA})
	testkit.NoError(t, err)
	return keys
}

// TestFleetUnderTLS runs all components with mutual TLS, with both data planes, and then connects
// without a certificate, and with that of another authority.
func TestFleetUnderTLS(t *testing.T) {
	withEachDataPlane(t, func(t *testing.T, dataPlane func(site)) {
		s := newSite(t, "tls: {}")
		s.write(t, fmt.Sprintf("tls: {cert: cert.pem, key: key.pem, ca: ca.pem, envoy_dir: %q}", filepath.Join(filepath.Dir(s.file), "envoy")))
		files := issue(t, filepath.Dir(s.file))
		s.serve(t)
		dataPlane(s)
		s.awaitServing(t)

		// Between migrators: in with the fleet's certificate, where a request that names no
		// front end is refused.
		peers, scheme := keysOf(t, files).PeerTransport(func(string) string { return "" })
		client := &http.Client{Transport: peers, Timeout: patience}
		resp, err := client.Get(scheme + "://" + s.peers + "/nothing")
		if err != nil {
			t.Fatalf("a peer: %v", err)
		}
		resp.Body.Close()
		client.CloseIdleConnections()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("a peer: %s", resp.Status)
		}

		stranger := keysOf(t, issue(t, t.TempDir())).ControlClientConfig("127.0.0.1")
		stranger.VerifyConnection = nil
		plain := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		for _, door := range []string{s.control, s.peers, s.front} {
			if resp, err := plain.Get("http://" + door + "/v1/models"); err == nil {
				resp.Body.Close()
				if resp.StatusCode != http.StatusBadRequest {
					t.Errorf("%s in plain text: %s", door, resp.Status)
				}
			}
			if err := dialTLS(door, &tls.Config{InsecureSkipVerify: true}); err == nil || !strings.Contains(err.Error(), "certificate required") {
				t.Errorf("%s without a certificate: %v", door, err)
			}
			if err := dialTLS(door, stranger); err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
				t.Errorf("%s with a stranger's certificate: %v", door, err)
			}
		}
	})
}

// dialTLS opens a connection and waits for data; nil means that the server sends some, or waits.
func dialTLS(address string, c *tls.Config) error {
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
