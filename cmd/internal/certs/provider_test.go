package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

const domain = "example.org"

func authority(t *testing.T) *devca.Authority {
	t.Helper()
	a, err := devca.New(domain, time.Now())
	testkit.NoError(t, err)
	return a
}

// issue writes the files of a component into dir.
func issue(t *testing.T, a *devca.Authority, dir string, role identity.Role, name string, hosts ...string) Config {
	t.Helper()
	id, err := identity.New(domain, role, name)
	if err == nil {
		err = a.Issue(dir, id, hosts, time.Now())
	}
	if err == nil {
		err = a.Save(dir)
	}
	testkit.NoError(t, err)
	return Config{
		Cert: filepath.Join(dir, devca.Cert), Key: filepath.Join(dir, devca.Key), CA: filepath.Join(dir, devca.AuthorityCert),
		Self: identity.Matcher{TrustDomain: domain, Role: role},
	}
}

func keys(t *testing.T, c Config) *Provider {
	t.Helper()
	k, err := New(c)
	testkit.NoError(t, err)
	return k
}

// shake runs one handshake over a pipe and returns whom the server saw.
func shake(t *testing.T, server, client *tls.Config) (identity.ID, error) {
	t.Helper()
	ours, theirs := net.Pipe()
	s := tls.Server(theirs, server)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ours.Close()
	var seen identity.ID
	done := make(chan struct{})
	wg.Go(func() {
		defer close(done)
		defer theirs.Close()
		if s.HandshakeContext(t.Context()) != nil {
			return
		}
		if certs := s.ConnectionState().PeerCertificates; len(certs) > 0 {
			seen, _ = identity.FromCertificate(certs[0])
		}
		s.Write([]byte{1})
	})
	c := tls.Client(ours, client)
	// Under TLS 1.3 the client hears of a refusal with its first read.
	_, err := io.ReadFull(c, make([]byte, 1))
	if err == nil {
		<-done
	}
	return seen, err
}

func TestWhoIsReached(t *testing.T) {
	a := authority(t)
	dir := t.TempDir()
	control := keys(t, issue(t, a, dir+"/control", identity.Control, "main"))
	r0 := keys(t, issue(t, a, dir+"/r0", identity.Migrator, "r0"))
	edge := keys(t, issue(t, a, dir+"/edge", identity.Proxy, "edge"))
	stranger := keys(t, issue(t, authority(t), dir+"/stranger", identity.Control, "main"))
	for name, c := range map[string]struct {
		server *tls.Config
		client *tls.Config
		want   string // "" for none
	}{
		"control":           {control.ServerConfig("h2"), edge.ControlClientConfig("10.0.0.9:1"), ""},
		"a migrator":        {r0.ServerConfig(), edge.MigratorClientConfig("r0", "10.0.0.9:1"), ""},
		"some migrator":     {r0.ServerConfig(), edge.MigratorClientConfig("", "10.0.0.9:1"), ""},
		"not control":       {r0.ServerConfig(), edge.ControlClientConfig("10.0.0.9:1"), "10.0.0.9:1: the certificate is spiffe://example.org/migrator/r0, and spiffe://example.org/control/* is wanted"},
		"another migrator":  {r0.ServerConfig(), edge.MigratorClientConfig("r1", "10.0.0.9:1"), "spiffe://example.org/migrator/r1 is wanted"},
		"not a migrator":    {control.ServerConfig(), edge.MigratorClientConfig("main", "10.0.0.9:1"), "spiffe://example.org/migrator/main is wanted"},
		"another authority": {stranger.ServerConfig(), edge.ControlClientConfig("10.0.0.9:1"), "unknown authority"},
		"a stranger":        {control.ServerConfig(), reckless(stranger), "unknown certificate authority"},
		"no certificate":    {control.ServerConfig(), &tls.Config{InsecureSkipVerify: true}, "certificate required"},
	} {
		seen, err := shake(t, c.server, c.client)
		switch {
		case c.want == "" && (err != nil || seen.String() != "spiffe://example.org/proxy/edge"):
			t.Errorf("%s: the server sees %v, the client %v", name, seen, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// reckless is a client that takes any server.
func reckless(k *Provider) *tls.Config {
	c := k.ControlClientConfig("10.0.0.9:1")
	c.VerifyConnection = nil
	return c
}

// TestDialledHost checks that without a trust domain, clients reject a certificate of the right
// authority for another host name or IP address.
func TestDialledHost(t *testing.T) {
	a := authority(t)
	for _, c := range []struct {
		host, dialled string
		valid         bool
	}{
		{"127.0.0.1", "127.0.0.1:1", true}, {"127.0.0.2", "127.0.0.1:1", false}, {"control", "control:1", true},
		{"control", "other:1", false}, {"control", "127.0.0.1:1", false},
	} {
		cfg := issue(t, a, t.TempDir(), identity.Control, "main", c.host)
		cfg.Self = identity.Matcher{}
		k := keys(t, cfg)
		if _, err := shake(t, k.ServerConfig("h2"), k.ControlClientConfig(c.dialled)); (err == nil) != c.valid {
			t.Errorf("certificate of %s, dialled %s: %v", c.host, c.dialled, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	a, dir := authority(t), t.TempDir()
	good := issue(t, a, dir, identity.Migrator, "r0")
	other := issue(t, a, dir+"/other", identity.Migrator, "r1")
	for _, c := range []struct {
		breaks func(*Config)
		want   string
	}{
		{func(c *Config) { c.Cert = dir + "/no.pem" }, "no.pem: no such file"},
		{func(c *Config) { c.Key = other.Key }, "cert.pem with "},
		{func(c *Config) { c.CA = c.Key }, "key.pem contains no PEM certificate"},
		{func(c *Config) { c.Self.Name = "r1" }, "cert.pem: the certificate is spiffe://example.org/migrator/r0, and spiffe://example.org/migrator/r1 is wanted"},
		{func(c *Config) { c.Self.Role = identity.Control }, "control/* is wanted"},
		{func(c *Config) { c.Self.TrustDomain = "example.com" }, "spiffe://example.com/migrator/* is wanted"},
		{func(c *Config) { c.Cert = c.CA; c.Key = dir + "/" + devca.AuthorityKey }, "belongs to a certificate authority"},
		{func(c *Config) { c.CA = "" }, "belong together"},
	} {
		bad := good
		c.breaks(&bad)
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", bad, err, c.want)
		}
	}
	id, err := identity.New(domain, identity.Migrator, "r0")
	if err == nil {
		err = a.Issue(dir, id, nil, time.Now().Add(-devca.LeafLifetime-time.Hour))
	}
	testkit.NoError(t, err)
	if _, err := New(good); err == nil || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("a certificate that has ended: %v", err)
	}
}

// TestRotation replaces the files while a server and a client use them: another
// identity of the same component is taken up; another component's, a pair that
// does not match and a missing file are not, and cost one line each.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, dir := authority(t), t.TempDir()
		cfg := issue(t, a, dir, identity.Control, "a")
		log := &testkit.Log{}
		cfg.Logger = log.Logger()
		k := keys(t, cfg)
		edge := keys(t, issue(t, a, t.TempDir(), identity.Proxy, "edge"))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- k.Run(ctx) }()
		inForce := func(want string) {
			t.Helper()
			time.Sleep(5*Interval + time.Second)
			synctest.Wait()
			if got := k.Identity().Name; got != want {
				t.Errorf("%q is in force, want %q", got, want)
			}
			if _, err := shake(t, k.ServerConfig(), edge.ControlClientConfig("c:1")); err != nil {
				t.Errorf("a handshake: %v", err)
			}
		}
		problem := func() (text string) {
			for _, p := range (Expiries{Own: k}).Problems(time.Now()) {
				text += p.Kind + ": " + p.Text + "\n"
			}
			return text
		}
		inForce("a")
		issue(t, a, dir, identity.Control, "b")
		inForce("b")
		if got := problem(); got != "" {
			t.Errorf("problems of good files: %s", got)
		}
		issue(t, a, dir, identity.Proxy, "b")
		inForce("b")
		if got := problem(); !strings.HasPrefix(got, "certificate: new certificate files are rejected, and the last valid ones stay in use: ") || !strings.Contains(got, "is wanted") {
			t.Errorf("problem of another component's certificate: %q", got)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != 1 || !strings.Contains(log.String(), "spiffe://example.org/control/* is wanted") {
			t.Errorf("%d warnings for another component's certificate:\n%s", got, log)
		}
		testkit.NoError(t, os.Remove(cfg.Key))
		inForce("b")
		issue(t, a, dir, identity.Control, "c")
		inForce("c")
		if got := problem(); got != "" {
			t.Errorf("problems after the repair: %s", got)
		}
		key, err := os.ReadFile(cfg.Key)
		testkit.NoError(t, err)
		issue(t, a, dir, identity.Control, "d")
		testkit.NoError(t, os.WriteFile(cfg.Key, key, 0o600))
		inForce("c")
		// One that is issued for later: the last one stays until then.
		testkit.NoError(t, a.Issue(dir, testkit.Must(identity.New(domain, identity.Control, "e")), nil, time.Now().Add(time.Hour)))
		inForce("c")
		if got := problem(); !strings.Contains(got, "which is not now") {
			t.Errorf("problem of a certificate that is not valid yet: %q", got)
		}
		time.Sleep(time.Hour)
		inForce("e")
		if got := strings.Count(log.String(), "level=WARN"); got != 4 {
			t.Errorf("%d warnings, want one for each of the four bad rotations:\n%s", got, log)
		}
		if got := strings.Count(log.String(), "rotated"); got != 3 {
			t.Errorf("%d rotations logged, want 3:\n%s", got, log)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestIntermediateAuthority: the certificate of an intermediate authority is accepted at both ends if its file has the
// chain.
func TestIntermediateAuthority(t *testing.T) {
	cfg := issue(t, authority(t), t.TempDir(), identity.Control, "main")
	leaf := testkit.Must(tls.LoadX509KeyPair(cfg.Cert, cfg.Key)).Leaf
	sign := func(c *x509.Certificate, public any, by *x509.Certificate, with *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
		raw := testkit.Must(x509.CreateCertificate(rand.Reader, c, by, public, with))
		return testkit.Must(x509.ParseCertificate(raw)), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	}
	top := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	below := top
	below.Subject.CommonName = "intermediate"
	rootKey, key := testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), testkit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	root, rootFile := sign(&top, rootKey.Public(), &top, rootKey)
	intermediate, intermediateFile := sign(&below, key.Public(), root, rootKey)
	_, own := sign(leaf, leaf.PublicKey, intermediate, key)
	writeFile(t, cfg.CA, rootFile)
	for chain, want := range map[string]string{string(own) + string(intermediateFile): "", string(own): "unknown authority"} {
		writeFile(t, cfg.Cert, []byte(chain))
		k := keys(t, cfg)
		_, err := shake(t, k.ServerConfig(), k.ControlClientConfig("c:1"))
		testkit.WantError(t, err, want)
	}
}

// TestPlainText: nil Keys are no TLS.
func TestPlainText(t *testing.T) {
	var k *Provider
	rt, scheme := k.PeerTransport(nil)
	if k.ServerConfig() != nil || k.ControlClientConfig("a:1") != nil || k.MigratorClientConfig("a", "a:1") != nil || k.WrapListener(nil) != nil || rt != nil || scheme != "" {
		t.Error("nil Keys make TLS")
	}
	if got := TransportCredentials(nil).Info().SecurityProtocol; got != "insecure" {
		t.Errorf("credentials of nil: %s", got)
	}
}
