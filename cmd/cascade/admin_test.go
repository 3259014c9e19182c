package main

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// listenAt opens a listener in memory at an address.
func listenAt(address string) *testkit.PipeListener {
	return testkit.NewPipeListener(netip.MustParseAddrPort(address))
}

func testAdminHandler() http.Handler {
	return adminserver.Handler(adminserver.NewRegistry(), func() string { return "" })
}

// TestAttackSlowAdmin checks that a client that never ends its request is cut.
func TestAttackSlowAdmin(t *testing.T) {
	for what, request := range map[string]string{
		"head": "GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
		"body": "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nx",
		"idle": "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := listenAt("127.0.0.1:9200")
				stop := testkit.Run(t, func(ctx context.Context) error {
					return adminserver.Serve(ctx, l, testAdminHandler(), adminserver.Access{})
				})
				conn := testkit.Must(l.Dial(t.Context()))
				testkit.Must(io.WriteString(conn, request))
				_, _ = io.Copy(io.Discard, conn) // until it is cut; synctest fails the test if it never is
				conn.Close()
				stop()
			})
		})
	}
}

// TestAttackAdminHost checks that a page whose name was rebound to loopback reads nothing.
func TestAttackAdminHost(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	stop := testkit.Run(t, func(ctx context.Context) error {
		return adminserver.Serve(ctx, l, testAdminHandler(), adminserver.Access{Hosts: []string{"metrics.example"}})
	})
	defer stop()
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "metrics.example": 200, "METRICS.example:80": 200, "attacker.example": 403, "127.0.0.1.attacker.example": 403, "10.0.0.1": 403,
	} {
		for _, path := range []string{"/metrics", "/healthz"} {
			r := testkit.Must(http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+path, nil))
			r.Host, r.Close = host, true
			resp := testkit.Must(http.DefaultClient.Do(r))
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s of host %q: %s, want %d", path, host, resp.Status, want)
			}
		}
	}
}

// TestAttackAdminRemote checks that an admin server off loopback does not start without
// TLS, and with it serves operators alone.
func TestAttackAdminRemote(t *testing.T) {
	const remote = "10.0.0.7:9200"
	testkit.WantError(t, adminserver.Serve(t.Context(), listenAt(remote), testAdminHandler(), adminserver.Access{}), "not a loopback address")
	dir := t.TempDir()
	runCommand(t, "tls", "--out", dir, "--trust-domain", "fleet.test", "--migrator", "r0", "--operator", "ops", "--proxy", "edge")
	certificate := func(role identity.Role, name string) (*certs.Provider, tls.Certificate) {
		at := filepath.Join(dir, string(role), name)
		cert, key := filepath.Join(at, "cert.pem"), filepath.Join(at, "key.pem")
		p := testkit.Must(certs.New(certs.Config{Cert: cert, Key: key, CA: filepath.Join(dir, "ca.pem"), Self: identity.Matcher{TrustDomain: "fleet.test", Role: role, Name: name}}))
		return p, testkit.Must(tls.LoadX509KeyPair(cert, key))
	}
	own, _ := certificate(identity.Migrator, "r0")
	l, mux := listenAt(remote), http.NewServeMux()
	mux.Handle("/", testAdminHandler())
	mux.Handle("/policies/records", adminserver.OnlyLocal(testAdminHandler()))
	stop := testkit.Run(t, func(ctx context.Context) error {
		return adminserver.Serve(ctx, l, mux, adminserver.Access{Certificate: own, TrustDomain: "fleet.test"})
	})
	defer stop()
	_, ops := certificate(identity.Operator, "ops")
	_, edge := certificate(identity.Proxy, "edge")
	get := func(path string, certificate tls.Certificate) string {
		tr := &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := l.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}}), nil
		}}
		defer tr.CloseIdleConnections()
		r := testkit.Must(http.NewRequest(http.MethodGet, "https://"+remote+path, nil))
		r.Host = "localhost"
		resp, err := tr.RoundTrip(r)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		return resp.Status + " " + string(testkit.Must(io.ReadAll(resp.Body)))
	}
	// A request would race with the server, which closes the connection after its alert.
	conn := tls.Client(testkit.Must(l.Dial(t.Context())), &tls.Config{InsecureSkipVerify: true})
	_, refusal := conn.Read(make([]byte, 1))
	testkit.WantError(t, refusal, "certificate required")
	for _, c := range []struct{ got, want string }{
		{get("/healthz", ops), "200 OK ok"}, {get("/healthz", edge), "403 Forbidden"},
		{get("/policies/records", ops), "403 Forbidden only for clients on the same host"},
	} {
		if !strings.Contains(c.got, c.want) {
			t.Errorf("answered %q, want %q", c.got, c.want)
		}
	}
}
