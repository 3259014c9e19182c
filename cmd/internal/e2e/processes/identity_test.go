package processes

import (
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// TestMovesWithIdentities runs a fleet in which every component has a certificate of its own,
// issued by "cascade tls init" and without a host name: requests migrate by TCP, and a replica that
// presents its own certificate on behalf of another one is rejected.
func TestMovesWithIdentities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command(t, "tls", "init", "--out", dir, "--trust-domain", "fleet.test", "--control", "control",
		"--proxy", "edge", "--migrator", "r0", "--migrator", "r1", "--migrator", "r2")
	files := config.TLS{
		Cert: filepath.Join(dir, "{role}", "{name}", devca.Cert), Key: filepath.Join(dir, "{role}", "{name}", devca.Key),
		CA: filepath.Join(dir, devca.AuthorityCert), TrustDomain: "fleet.test",
	}
	f := newFleet(t, setup{replicas: 3, edit: func(c *config.Fleet) {
		c.TLS = files
		for i := range c.Replicas {
			c.Replicas[i].Host = "n" + strconv.Itoa(i)
		}
	}})
	drainInTurn(t, f, "tcp")
	own := files.ForComponent(identity.Migrator, "r2")
	keys, err := certs.New(certs.Config{Cert: own.Cert, Key: own.Key, CA: own.CA, Self: files.ExpectedIdentity(identity.Migrator, "r2")})
	if err != nil {
		t.Fatal(err)
	}
	r := f.replicas[0]
	tunnels := 0
	for _, address := range listeningAddresses(t, r.migrator.cmd.Process.Pid) {
		if address == r.Address || address == r.Admin || address == r.Peer {
			continue
		}
		tunnels++
		if err := dialWithTicket(address, keys.MigratorClientConfig("r0", address), make([]byte, transport.TicketSize)); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("r2 as r1 where blocks are pulled: %v", err)
		}
		var wrong *tls.CertificateVerificationError
		if err := dialWithTicket(address, keys.MigratorClientConfig("r1", address), nil); err == nil || errors.As(err, &wrong) || !strings.Contains(err.Error(), "migrator/r1 is wanted") {
			t.Errorf("r0 is taken for r1: %v", err)
		}
	}
	if tunnels != 1 {
		t.Errorf("the migrator listens for %d transports over TCP, want 1", tunnels)
	}
	peers, scheme := keys.PeerTransport(func(string) string { return "r0" })
	client := &http.Client{Transport: peers}
	defer client.CloseIdleConnections()
	for front, want := range map[string]int{"r1": http.StatusForbidden, "r2": http.StatusOK} {
		req, err := http.NewRequest(http.MethodPost, scheme+"://"+r.Peer+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":2}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Cascade-Forward", front)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("r2 as the front %s: %s, want %d", front, resp.Status, want)
		}
	}
}

// TestControlPlanesWithIdentities runs two control planes with certificates by name, and kills the
// leader: a real Envoy connects to the other one and receives nothing twice. Neither control plane
// starts with the other one's certificate.
func TestControlPlanesWithIdentities(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	dir := t.TempDir()
	command(t, "tls", "init", "--out", dir, "--trust-domain", "fleet.test", "--control", "a", "--control", "b",
		"--proxy", "edge", "--migrator", "r0", "--migrator", "r1")
	f := newFleet(t, setup{envoy: true, replicas: 2, planes: 2, edit: func(c *config.Fleet) {
		// The cache is so large that the load below changes no weight.
		c.Models[0].KVTokens = 1 << 20
		c.TLS = config.TLS{
			Cert: filepath.Join(dir, "{role}", "{name}", devca.Cert), Key: filepath.Join(dir, "{role}", "{name}", devca.Key),
			CA: filepath.Join(dir, devca.AuthorityCert), TrustDomain: "fleet.test",
		}
	}})
	a, b := f.planes[0], f.planes[1]
	a.await("has the Envoy", func(s control.Status) bool { return isLeading(s) && envoyHasPlan("edge")(s) })
	b.await("follows a", isFollowing("a"))
	load := newTraffic(f, newOracle(f), "http://"+f.file.Proxy.Listen, calm)
	load.waitForRequests(5)

	const counted = `(cluster_(added|modified|removed)|listener_(added|modified)|\.rds\..*config_reload|^cluster\.cascade/.*\.update_success)$`
	before := f.envoy.Stats(counted)
	a.process.kill()
	if s := b.await("has the Envoy", envoyHasPlan("edge")); !hasFreshReports(s) {
		t.Error("b does not know the loads")
	}
	after := f.envoy.Stats(counted)
	if len(after) < policies.MaxStages {
		t.Errorf("too few statistics: %v", after)
	}
	for name, n := range after {
		if before[name] != n {
			t.Errorf("%s: %d before, %d after", name, before[name], n)
		}
	}
	b.await("plans", isLeading)
	b.cascade("drain", "r0", "--wait", "--timeout", patience.String())

	// With the other one's certificate it does not restart.
	own, others := filepath.Join(dir, "control", "a"), filepath.Join(dir, "control", "b")
	if err := errors.Join(os.Rename(own, own+".own"), os.CopyFS(own, os.DirFS(others))); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(cascade, "control", "-c", f.path("fleet.yaml"), "--name", "a", "--listen", a.listen, "--admin", a.admin).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is spiffe://fleet.test/control/b, and spiffe://fleet.test/control/a is wanted") {
		t.Errorf("with the certificate of b: %v: %s", err, out)
	}
	if err := errors.Join(os.RemoveAll(own), os.Rename(own+".own", own)); err != nil {
		t.Fatal(err)
	}
	a.start()
	a.await("follows b", isFollowing("b"))
	a.cascade("undrain", "r0")
	b.await("the Envoy has the plan with r0", envoyHasEpoch(3))
	load.waitForRequests(5)
	load.stop()
	load.report()
	for _, p := range f.planes {
		if strings.Contains(p.process.out.String(), "client refused: its certificate does not match") {
			t.Errorf("%s refuses the fleet's own parts: %s", p.name, p.process.out)
		}
	}
}
