package main

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestIssuedCertificates checks that init issues a certificate for each control plane of a fleet
// file, valid for the hosts of all of them and the flags, and keeps the keys private. Script
// tls.txt has the rest.
func TestIssuedCertificates(t *testing.T) {
	dir := t.TempDir()
	s := newSite(t, "state: state\ncontrol: {name: main, listen: \"127.0.0.1:18000\", peers: [\"127.0.0.9:18100\"]}\n"+identities(dir, dir))
	runCommand(t, "tls", "--out", dir, "--trust-domain", "fleet.test", "-c", s.file, "--host", "control.example.org")
	host, err := os.Hostname()
	testkit.NoError(t, err)
	for _, name := range []string{"main", identity.Escape(host + ":18100")} {
		own := filepath.Join(dir, "control", name)
		pair, err := tls.LoadX509KeyPair(filepath.Join(own, "cert.pem"), filepath.Join(own, "key.pem"))
		testkit.NoError(t, err)
		for _, address := range []string{"127.0.0.1", "127.0.0.9", "control.example.org"} {
			if err := pair.Leaf.VerifyHostname(address); err != nil {
				t.Error(err)
			}
		}
		if info, err := os.Stat(filepath.Join(own, "key.pem")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key is not private: %v, %v", info, err)
		}
	}
}
