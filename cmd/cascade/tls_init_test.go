package main

import (
	"crypto/tls"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/identity"
)

// TestTLSInit: an authority is made once, certificates any number of times; what
// cannot be is refused before anything is written.
func TestTLSInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	fails := func(want string, args ...string) {
		t.Helper()
		out := newOutput()
		code := run(t.Context(), append([]string{"tls", "init"}, args...), out, out)
		if text, _ := out.read(); code == 0 || !strings.Contains(text, want) {
			t.Errorf("%q: code %d, %s; want %q", args, code, text, want)
		}
	}
	fails("--out")
	fails("--trust-domain", "--out", dir, "--proxy", "edge")
	fails("lower-case", "--out", dir, "--trust-domain", "Fleet", "--proxy", "edge")
	fails("name the components", "--out", dir, "--trust-domain", "fleet.test")
	fails(`--proxy ".."`, "--out", dir, "--trust-domain", "fleet.test", "--proxy", "..")
	if _, err := os.Stat(dir); err == nil {
		t.Error("something was written by command lines that are wrong")
	}
	says(t, "tls", "init", "--out", dir, "--trust-domain", "fleet.test", "--proxy", "../edge@a")
	if _, err := os.Stat(filepath.Join(dir, "proxy", "..%2Fedge%40a", "cert.pem")); err != nil {
		t.Error(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	var printed struct {
		TrustDomain string `json:"trust_domain"`
		Issued      []struct{ Identity, Cert, Key string }
	}
	text := says(t, "tls", "init", "--json", "--out", dir, "--migrator", "r0", "--control", "main", "--migrator", "r0")
	if err := json.Unmarshal([]byte(text), &printed); err != nil || printed.TrustDomain != "fleet.test" || len(printed.Issued) != 2 || printed.Issued[1].Identity != "spiffe://fleet.test/migrator/r0" {
		t.Errorf("%v: %s", err, text)
	}
	says(t, "tls", "init", "--out", dir, "--control", "main", "--host", "control.example.org", "--host", "10.0.0.5")
	pair, err := tls.LoadX509KeyPair(printed.Issued[0].Cert, printed.Issued[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"control.example.org", "10.0.0.5"} {
		if err := pair.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if again, err := os.ReadFile(filepath.Join(dir, "ca.pem")); err != nil || string(again) != string(ca) {
		t.Errorf("the authority was made anew: %v", err)
	}
	if info, err := os.Stat(printed.Issued[0].Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is for others, too: %v, %v", info, err)
	}
	fails("authority of fleet.test", "--out", dir, "--trust-domain", "other.test", "--proxy", "edge")
	if err := os.Remove(filepath.Join(dir, "ca-key.pem")); err != nil {
		t.Fatal(err)
	}
	fails("move it away", "--out", dir, "--trust-domain", "fleet.test", "--proxy", "edge")
}

// TestConfigCheckIdentities: whose certificates a fleet file names.
func TestConfigCheckIdentities(t *testing.T) {
	s, dir := identified(t)
	if text := says(t, "config", "check", s.file); !strings.Contains(text, "fits cascade migrator --replica r0") || !strings.Contains(text, "spiffe://fleet.test/control/control: fits cascade control") {
		t.Errorf("all good: %s", text)
	}
	cert := filepath.Join(dir, "migrator/r0/cert.pem")
	if err := os.Rename(filepath.Join(dir, "migrator/r0"), filepath.Join(dir, "gone")); err != nil {
		t.Fatal(err)
	}
	if text := says(t, "config", "check", s.file); !strings.Contains(text, cert+" is not on this host") {
		t.Errorf("one is elsewhere: %s", text)
	}
	fixed := func(more string) string {
		other := s
		other.file = filepath.Join(t.TempDir(), "fleet.yaml")
		other.write(t, more)
		return other.file
	}
	one := strings.NewReplacer("{role}", "proxy", "{name}", "edge").Replace(identities(dir, dir))
	if text := says(t, "config", "check", fixed(one)); !strings.Contains(text, "fits cascade proxy") {
		t.Errorf("the file of one machine: %s", text)
	}
	wrong := strings.NewReplacer("{role}", "proxy", "{name}", "edge", "fleet.test", "other.test").Replace(identities(dir, dir))
	out := newOutput()
	if code := run(t.Context(), []string{"config", "check", "--json", fixed(wrong)}, out, out); code == 0 {
		t.Error("another trust domain's certificate is good")
	}
	if text, _ := out.read(); !strings.Contains(text, `"ok":false`) || !strings.Contains(text, "spiffe://other.test/* is wanted") {
		t.Errorf("another trust domain: %s", text)
	}
	for more, want := range map[string]string{
		"tls: {trust_domain: fleet.test}":                                        "set tls.cert",
		"tls: {cert: '{name}.pem', key: k.pem, ca: c.pem}":                       "set tls.trust_domain",
		"tls: {cert: '{name}.pem', key: k.pem, ca: c.pem, trust_domain: a}":      "in both cert and key",
		"tls: {cert: c.pem, key: k.pem, ca: '{role}.pem', trust_domain: a}":      "have the same authorities",
		"tls: {cert: c.pem, key: k.pem, ca: ca.pem, trust_domain: 'spiffe://a'}": "lower-case",
	} {
		out := newOutput()
		code := run(t.Context(), []string{"config", "check", fixed(more)}, out, out)
		if text, _ := out.read(); code == 0 || !strings.Contains(text, want) {
			t.Errorf("%s: code %d, %s; want %q", more, code, text, want)
		}
	}
}

// TestCertificatePerControlPlane: init issues one to each control
// plane of a fleet file, good for the hosts of all, and check distinguishes them.
func TestCertificatePerControlPlane(t *testing.T) {
	dir := t.TempDir()
	s := newSite(t, "state: state\n"+identities(dir, dir))
	text, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	more := strings.Replace(string(text), "control: {", `control: {name: main, peers: ["127.0.0.9:18100"], `, 1)
	if more == string(text) {
		t.Fatalf("no control section: %s", text)
	}
	if err := os.WriteFile(s.file, []byte(more), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, "tls", "init", "--out", dir, "--trust-domain", "fleet.test", "-c", s.file)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	peer := identity.Escape(host + ":18100")
	for _, name := range []string{"main", peer} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "control", name, "cert.pem"), filepath.Join(dir, "control", name, "key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range []string{"127.0.0.1", "127.0.0.9"} {
			if err := pair.Leaf.VerifyHostname(address); err != nil {
				t.Error(err)
			}
		}
	}
	for _, want := range []string{"fits cascade control --name main\n", "fits cascade control --name " + host + ":18100\n"} {
		if text := says(t, "config", "check", s.file); !strings.Contains(text, want) {
			t.Errorf("%s; want %q", text, want)
		}
	}
	if err := os.RemoveAll(filepath.Join(dir, "control", "main")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "control", peer), filepath.Join(dir, "control", "main")); err != nil {
		t.Fatal(err)
	}
	out := newOutput()
	if code := run(t.Context(), []string{"config", "check", s.file}, out, out); code == 0 {
		t.Error("one control plane with the certificate of another is good")
	}
}
