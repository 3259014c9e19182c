package devca

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestIssue: what an authority issues, after it was saved and loaded, is good
// under it, for both sides, and for as long as was said.
func TestIssue(t *testing.T) {
	now := time.Now()
	dir := t.TempDir()
	made, err := New("fleet.test", now)
	if err == nil {
		err = made.Save(dir)
	}
	testkit.NoError(t, err)
	a, err := Load(dir)
	if err != nil || a.TrustDomain() != "fleet.test" || !a.NotAfter().Equal(made.NotAfter()) {
		t.Fatalf("%+v, %v", a, err)
	}
	id, err := identity.New("fleet.test", identity.Control, "main")
	testkit.NoError(t, err)
	late := now.Add(AuthorityLifetime - LeafLifetime/2)
	for _, at := range []time.Time{now, late} {
		own := filepath.Join(dir, "control", "main")
		testkit.NoError(t, a.Issue(own, id, []string{"localhost", "127.0.0.1"}, at))
		pair, err := tls.LoadX509KeyPair(filepath.Join(own, Cert), filepath.Join(own, Key))
		testkit.NoError(t, err)
		roots := x509.NewCertPool()
		pem, err := os.ReadFile(filepath.Join(dir, AuthorityCert))
		if err != nil || !roots.AppendCertsFromPEM(pem) {
			t.Fatalf("%s: %v", pem, err)
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			for _, host := range []string{"", "localhost", "127.0.0.1"} {
				opts := x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{usage}, DNSName: host}
				if _, err := pair.Leaf.Verify(opts); err != nil {
					t.Errorf("usage %v, host %q: %v", usage, host, err)
				}
			}
		}
		if got, err := identity.FromCertificate(pair.Leaf); err != nil || got != id {
			t.Errorf("%v, %v", got, err)
		}
		if end := pair.Leaf.NotAfter; end.After(at.Add(LeafLifetime)) || end.After(a.NotAfter()) {
			t.Errorf("issued at %v it ends at %v", at, end)
		}
	}
	if err := a.Issue(dir, identity.ID{TrustDomain: "other.test", Role: identity.Control, Name: "main"}, nil, now); err == nil || !strings.Contains(err.Error(), "certificates of fleet.test only") {
		t.Errorf("another trust domain: %v", err)
	}
	if err := a.Issue(dir, id, nil, now.Add(AuthorityLifetime)); err == nil || !strings.Contains(err.Error(), "has expired") {
		t.Errorf("after its end: %v", err)
	}
}

func TestLoadRefuses(t *testing.T) {
	now := time.Now()
	dir, other := t.TempDir(), t.TempDir()
	if _, err := Load(dir); !os.IsNotExist(err) {
		t.Errorf("nothing: %v", err)
	}
	for _, d := range []string{dir, other} {
		a, err := New("fleet.test", now)
		if err == nil {
			err = a.Save(d)
		}
		testkit.NoError(t, err)
	}
	testkit.NoError(t, os.Rename(filepath.Join(other, AuthorityKey), filepath.Join(dir, AuthorityKey)))
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "do not belong to one authority") {
		t.Errorf("another's key: %v", err)
	}
	testkit.NoError(t, os.WriteFile(filepath.Join(dir, AuthorityKey), []byte("x"), 0o600))
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "no PEM") {
		t.Errorf("no key: %v", err)
	}
	if _, err := New("", now); err == nil {
		t.Error("an authority without a trust domain")
	}
}
