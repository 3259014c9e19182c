package main

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// newIdentifiedSite returns a site whose components have identities.
func newIdentifiedSite(t *testing.T) (s site, dir string) {
	t.Helper()
	dir = t.TempDir()
	s = newSite(t, identities(dir, dir))
	runCommand(t, "tls", "--out", dir, "--trust-domain", "fleet.test", "-c", s.file, "--proxy", "edge", "--proxy", "edge-2")
	return s, dir
}

// identities returns the tls section for the authority of one directory and the certificates of
// another.
func identities(ca, own string) string {
	return fmt.Sprintf("tls: {trust_domain: fleet.test, ca: %q, cert: %q, key: %q, envoy_dir: %q}",
		filepath.Join(ca, "ca.pem"), filepath.Join(own, "{role}/{name}/cert.pem"), filepath.Join(own, "{role}/{name}/key.pem"), filepath.Join(own, "envoy"))
}

// inPlainText lets proxies and migrators of a fleet file speak plain text.
func inPlainText(text string) string {
	if strings.Contains(text, "plaintext:") {
		return text
	}
	return strings.Replace(text, "tls: {", "tls: {plaintext: [requests], ", 1)
}

// serve starts all components but the data plane, and returns the control plane.
func (s site) serve(t *testing.T) *running {
	t.Helper()
	c := start(t, "control", "-c", s.file)
	start(t, "engine", "-c", s.file, "--replica", "r0")
	private, err := os.MkdirTemp("", "run")
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(private) })
	start(t, "migrator", "-c", s.file, "--replica", "r0", "--runtime-dir", private, "--log", "error")
	awaitURL(t, "http://"+s.admin+"/readyz", "ready")
	return c
}

// sendRequest sends a request through the data plane, which must succeed.
func (s site) sendRequest(t *testing.T) {
	t.Helper()
	status, body, err := ask(t.Context(), http.MethodPost, "http://"+s.proxy+"/v1/completions", []byte(`{"model":"llama","prompt":"x","max_tokens":2}`))
	if err != nil || status != http.StatusOK {
		t.Fatalf("through the data plane: %d %s %v", status, body, err)
	}
}

// startEnvoy starts an Envoy as the fleet's node "edge", whose files are written to a directory.
func (s site) startEnvoy(t *testing.T, dir string) *envoytest.Process {
	t.Helper()
	runCommand(t, "envoy-bootstrap", "-c", s.file, "--node-id", "edge", "--admin", "127.0.0.1:0", "--out", dir)
	boot := string(testkit.Must(os.ReadFile(filepath.Join(dir, "bootstrap.json"))))
	envoytest.Validate(t, boot)
	return envoytest.Start(t, envoytest.Config{Bootstrap: boot})
}

// withEachDataPlane runs a test with the fleet's node "edge" as a proxy and as an Envoy, which dataPlane starts. They
// may run at the same time.
func withEachDataPlane(t *testing.T, test func(t *testing.T, dataPlane func(s site))) {
	t.Parallel()
	t.Run("proxy", func(t *testing.T) {
		t.Parallel()
		test(t, func(s site) { start(t, "proxy", "-c", s.file, "--node-id", "edge", "--log", "error") })
	})
	t.Run("envoy", func(t *testing.T) {
		t.Parallel()
		envoytest.Binary(t)
		test(t, func(s site) { s.startEnvoy(t, filepath.Join(filepath.Dir(s.file), "envoy")) })
	})
}

// awaitServing waits until the node "edge" serves the replica, and sends a request through it.
func (s site) awaitServing(t *testing.T) {
	t.Helper()
	awaitURL(t, "http://"+s.proxy+"/v1/models", "llama")
	awaitURL(t, "http://"+s.admin+"/status", `"health": "healthy".*"id": "edge"`)
	s.sendRequest(t)
}

const notThem = "client refused: its certificate does not match"

// refused counts the log lines about refused clients.
func (d *running) refused() int {
	text := d.out.String()
	return strings.Count(text, notThem)
}

// TestFleetWithIdentities serves requests with one certificate per component, without host names. An
// embedded proxy with the certificate of another component does not start.
func TestFleetWithIdentities(t *testing.T) {
	t.Parallel()
	s, dir := newIdentifiedSite(t)
	c := s.serve(t)
	start(t, "proxy", "-c", s.file, "--node-id", "edge", "--log", "error")
	s.awaitServing(t)

	// Front ends serve proxies and operators, and no other component.
	for who, want := range map[identity.Role]int{identity.Proxy: http.StatusOK, identity.Control: http.StatusForbidden, identity.Migrator: http.StatusForbidden} {
		name := map[identity.Role]string{identity.Proxy: "edge-2", identity.Control: "control", identity.Migrator: "r0"}[who]
		own := filepath.Join(dir, string(who), name)
		keys := keysOf(t, config.TLS{Cert: filepath.Join(own, "cert.pem"), Key: filepath.Join(own, "key.pem"), CA: filepath.Join(dir, "ca.pem")})
		secure := keys.ReplicaClientConfig(s.front)
		secure.VerifyConnection = nil
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: secure}, Timeout: patience}
		resp, err := client.Get("https://" + s.front + "/v1/models")
		testkit.NoError(t, err)
		resp.Body.Close()
		client.CloseIdleConnections()
		if resp.StatusCode != want {
			t.Errorf("a %s is answered %s, want %d", who, resp.Status, want)
		}
	}

	if code, _ := runFor(t.Context(), "proxy", "-c", s.file, "--node-id", "unknown"); code == 0 {
		t.Error("a proxy without a certificate starts")
	}
	fixed := filepath.Join(t.TempDir(), "fleet.yaml")
	elsewhere := site{file: fixed, proxy: testkit.Addresses(t, 1)[0], control: s.control, admin: s.admin, engine: s.engine, front: s.front, peers: s.peers}
	elsewhere.write(t, strings.NewReplacer("{role}", "proxy", "{name}", "edge-2").Replace(identities(dir, dir)))
	if code, text := runFor(t.Context(), "proxy", "-c", fixed, "--node-id", "edge"); code == 0 || !strings.Contains(text, "is spiffe://fleet.test/proxy/edge-2, and spiffe://fleet.test/proxy/edge is wanted") {
		t.Errorf("a proxy with another's certificate ends with code %d: %s", code, text)
	}
	if got := c.refused(); got != 0 {
		t.Errorf("%d refusals of the fleet's own parts", got)
	}
}

// envoyBoot returns the bootstrap of an Envoy that hardly waits for its configuration, and that sends no requests to
// migrators.
func envoyBoot(t *testing.T, file string, args ...string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	testkit.NoError(t, err)
	own := filepath.Join(t.TempDir(), "fleet.yaml")
	testkit.NoError(t, os.WriteFile(own, []byte(inPlainText(string(text))), 0o600))
	boot := runCommand(t, append([]string{"envoy-bootstrap", "--admin", "127.0.0.1:0", "-c", own}, args...)...)
	return strings.ReplaceAll(boot, `"initial_fetch_timeout": "0s"`, `"initial_fetch_timeout": "0.2s"`)
}

// requireUnconfigured fails if an Envoy has resources of the fleet.
func requireUnconfigured(t *testing.T, who string, p *envoytest.Process) {
	t.Helper()
	if got := string(p.Get("/listeners")); got != "" {
		t.Errorf("%s has listeners: %s", who, got)
	}
	if got := p.Stats(`^cluster_manager\.cds\.update_success$`)["cluster_manager.cds.update_success"]; got != 0 {
		t.Errorf("%s has had %d updates of clusters", who, got)
	}
}

// awaitStat waits until a counter of an Envoy has reached a value.
func awaitStat(t *testing.T, p *envoytest.Process, name string, least int64) {
	t.Helper()
	testkit.WaitForValue(t, fmt.Sprintf("%s to be %d", name, least), func() int64 { return p.Stats(name)[name] }, func(n int64) bool { return n >= least })
}

// TestEnvoyIdentity starts real Envoys with a valid certificate, with another's node id, with a
// certificate of another authority, and with a server that is not the control plane. The first one is
// not affected by the others.
func TestEnvoyIdentity(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	s, dir := newIdentifiedSite(t)
	c := s.serve(t)
	edge := s.startEnvoy(t, filepath.Join(dir, "envoy"))
	s.awaitServing(t)
	connected := edge.Stats("cascade-xds.upstream_cx_total")

	began := time.Now()
	// A valid certificate with the node id of another Envoy.
	stolen := strings.Replace(envoyBoot(t, s.file, "--node-id", "edge-2"), `"id": "edge-2"`, `"id": "edge"`, 1)
	thief := envoytest.Start(t, envoytest.Config{Bootstrap: stolen})
	c.await("spiffe://fleet.test/proxy/edge-2.*" + notThem + "|" + notThem + ".*spiffe://fleet.test/proxy/edge-2")
	awaitStat(t, thief, "cluster.cascade-xds.upstream_rq_total", 4) // it tries again
	requireUnconfigured(t, "an Envoy with another node id", thief)

	// A certificate of an authority that the server does not trust.
	other := t.TempDir()
	runCommand(t, "tls", "--out", other, "--trust-domain", "fleet.test", "--proxy", "edge")
	file := filepath.Join(t.TempDir(), "fleet.yaml")
	elsewhere := s
	elsewhere.file = file
	elsewhere.write(t, identities(dir, other))
	stranger := envoytest.Start(t, envoytest.Config{Bootstrap: envoyBoot(t, file, "--node-id", "edge")})
	awaitStat(t, stranger, "cluster.cascade-xds.upstream_cx_destroy", 2)
	requireUnconfigured(t, "an Envoy of another authority", stranger)
	// A server whose authority the Envoy does not trust.
	elsewhere.write(t, identities(other, other))
	wary := envoytest.Start(t, envoytest.Config{Bootstrap: envoyBoot(t, file, "--node-id", "edge")})
	awaitStat(t, wary, "cluster.cascade-xds.ssl.fail_verify_error", 1)
	requireUnconfigured(t, "an Envoy that trusts another authority", wary)
	// A migrator is not the control plane.
	lost := envoytest.Start(t, envoytest.Config{Bootstrap: envoyBoot(t, s.file, "--node-id", "edge-2", "--control", s.peers)})
	awaitStat(t, lost, "cluster.cascade-xds.ssl.fail_verify_san", 1)
	requireUnconfigured(t, "an Envoy that connects to a migrator", lost)

	s.sendRequest(t)
	sum, most := 0, loglimit.PerSubject*(1+int(time.Since(began)/loglimit.Interval))
	text := c.out.String()
	for _, who := range []string{"client=spiffe://fleet.test/proxy/edge-2 ", "client=127.0.0.1 "} {
		n := strings.Count(text, who)
		if sum += n; n < 1 || n > most {
			t.Errorf("%s is logged %d times, want %d at most", who, n, most)
		}
	}
	if now := edge.Stats("cascade-xds.upstream_cx_total"); fmt.Sprint(now) != fmt.Sprint(connected) {
		t.Errorf("the Envoy with its own name connected again: %v, before %v", now, connected)
	}
	if got := edge.Stats(`update_rejected`); got["cluster_manager.cds.update_rejected"]+got["listener_manager.lds.update_rejected"] != 0 {
		t.Errorf("it rejected a response: %v", got)
	}
}

// TestAttackEdgeKeyEnvoy runs a real Envoy that has a certificate of the fleet and is not listed: it
// gets listeners but no key of the edge, and accepts no client. A listed one serves HTTPS.
func TestAttackEdgeKeyEnvoy(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	s, dir := newIdentifiedSite(t)
	edge := issue(t, t.TempDir())
	downstream := func(nodes string) string {
		return inPlainText(identities(dir, dir)) + fmt.Sprintf("\nproxy: {listen: %q, nodes: [%s], tls: {cert: %q, key: %q}}", s.proxy, nodes, edge.Cert, edge.Key)
	}
	s.write(t, downstream("edge"))
	c := s.serve(t)
	if code, text := runFor(t.Context(), "envoy-bootstrap", "-c", s.file, "--node-id", "edge-2"); code == 0 || !strings.Contains(text, `node id "edge-2" is not in proxy.nodes`) {
		t.Errorf("the bootstrap of a proxy that is not listed ends with code %d: %s", code, text)
	}
	own := s
	own.file = filepath.Join(t.TempDir(), "fleet.yaml") // as its owner wrote it
	own.write(t, downstream("edge-2"))
	other := envoytest.Start(t, envoytest.Config{Bootstrap: envoyBoot(t, own.file, "--node-id", "edge-2")})
	c.await("secret refused.*node=edge-2")
	awaitStat(t, other, "listener_manager.lds.update_success", 1)
	if got := string(other.Get("/config_dump?resource=dynamic_active_secrets")); strings.Contains(got, "certificate_chain") {
		t.Errorf("an Envoy that is not listed has the key: %s", got)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: patience}
	if resp, err := client.Get("https://" + s.proxy + "/v1/models"); err == nil {
		t.Errorf("an Envoy that is not listed serves HTTPS: %s", resp.Status)
	}
	other.Stop()
	listed := envoytest.Start(t, envoytest.Config{Bootstrap: envoyBoot(t, s.file, "--node-id", "edge")})
	testkit.WaitFor(t, "the listed Envoy to serve HTTPS", func() bool {
		resp, err := client.Get("https://" + s.proxy + "/v1/models")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	client.CloseIdleConnections()
	if got := string(listed.Get("/config_dump?resource=dynamic_active_secrets")); !strings.Contains(got, "certificate_chain") {
		t.Errorf("secrets of the listed Envoy: %s", got)
	}
}

// TestEnvoyRotates issues a new certificate for an Envoy, which uses it without a restart.
func TestEnvoyRotates(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	s, dir := newIdentifiedSite(t)
	s.serve(t)
	edge := s.startEnvoy(t, filepath.Join(dir, "envoy"))
	awaitURL(t, "http://"+s.admin+"/status", `"health": "healthy".*"id": "edge"`)
	serial := func() string {
		var page struct {
			Certificates []struct {
				Chain []struct {
					Serial string `json:"serial_number"`
				} `json:"cert_chain"`
			} `json:"certificates"`
		}
		testkit.NoError(t, json.Unmarshal(edge.Get("/certs"), &page))
		for _, c := range page.Certificates {
			for _, cert := range c.Chain {
				return cert.Serial
			}
		}
		return ""
	}
	before := serial()
	runCommand(t, "tls", "--out", dir, "--proxy", "edge")
	testkit.WaitFor(t, "Envoy's new certificate", func() bool { return serial() != before })
	if before == "" {
		t.Fatal("Envoy has no certificate")
	}
	s.sendRequest(t)
}
