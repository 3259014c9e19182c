package certs

import (
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestRefusalsNameTheCertificate: each call to a server that refuses the client's
// certificate, or that the client refuses, fails with an error that says which
// certificate was refused by whom, and of which authority it is.
func TestRefusalsNameTheCertificate(t *testing.T) {
	a, dir := authority(t), t.TempDir()
	control := keys(t, issue(t, a, dir+"/control", identity.Control, "main"))
	ca := testkit.Must(os.ReadFile(control.cfg.CA))
	for name, c := range map[string]struct {
		ca   []byte // of the client, which no authority of the server's has certified
		want []string
	}{
		"the server refuses": {ca, []string{"refused the own certificate spiffe://example.org/proxy/edge, issued by ", "/edge/", "unknown certificate authority"}},
		"the client refuses": {nil, []string{"has the certificate spiffe://example.org/control/main, issued by ", "unknown authority"}},
	} {
		l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
		server := grpc.NewServer(grpc.Creds(credentials.NewTLS(control.ServerConfig("h2"))))
		healthv1.RegisterHealthServer(server, health.NewServer())
		go server.Serve(l)
		strange := issue(t, authority(t), t.TempDir()+"/edge", identity.Proxy, "edge")
		if c.ca != nil {
			testkit.NoError(t, os.WriteFile(strange.CA, c.ca, 0o600))
		}
		edge := keys(t, strange)
		for range 50 { // whichever end of the connection is first
			conn := testkit.Must(grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(edge.ControlCredentials(l.Addr().String()))))
			_, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{})
			conn.Close()
			for _, want := range append(c.want, l.Addr().String()) {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("%s: %v\nwant %q", name, err, want)
				}
			}
		}
		server.Stop()
	}
}

// TestPeerRefusalNamesTheCertificate: so does each HTTP request to another migrator.
func TestPeerRefusalNamesTheCertificate(t *testing.T) {
	a, dir := authority(t), t.TempDir()
	own := keys(t, issue(t, a, dir+"/r0", identity.Migrator, "r0"))
	l := own.WrapListener(testkit.Must(net.Listen("tcp", "127.0.0.1:0")))
	server := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0)}
	go server.Serve(l)
	defer server.Close()
	strange := issue(t, authority(t), t.TempDir()+"/r1", identity.Migrator, "r1")
	testkit.NoError(t, os.WriteFile(strange.CA, testkit.Must(os.ReadFile(own.cfg.CA)), 0o600))
	transport, scheme := keys(t, strange).PeerTransport(func(string) string { return "r0" })
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	for range 50 { // whichever end of the connection is first
		_, err := client.Post(scheme+"://"+l.Addr().String(), "text/plain", strings.NewReader("a leg"))
		for _, want := range []string{l.Addr().String(), "refused the own certificate spiffe://example.org/migrator/r1, issued by ", "unknown certificate authority"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("%v\nwant %q", err, want)
			}
		}
	}
}

// TestExpiryIsAnnounced: a certificate is warned of before it expires, once a day, with
// its file and the days that are left, and its end is a metric all the time.
func TestExpiryIsAnnounced(t *testing.T) {
	a, dir := authority(t), t.TempDir()
	files := issue(t, a, dir+"/control", identity.Control, "main")
	k := keys(t, files)
	leaf := k.files.current().cert.Leaf
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	lead := min(maxExpiryNotice, lifetime/4)
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		w := newExpiryWatch(log.Logger())
		at := func(before time.Duration) { w.check(k.expiries(), leaf.NotAfter.Add(-before)) }
		at(lead + time.Minute)
		if log.Count("certificate") != 0 {
			t.Errorf("too early:\n%s", &log)
		}
		at(lead - time.Minute)
		at(lead - time.Hour)
		if log.Count("certificate expires soon") != 1 || log.Count("file="+files.Cert) != 1 {
			t.Errorf("on the first day:\n%s", &log)
		}
		at(lead - 25*time.Hour)
		if log.Count("certificate expires soon") != 2 {
			t.Errorf("on the second day:\n%s", &log)
		}
		at(time.Minute)
		at(-time.Second) // although the last warning was a minute ago
		if log.Count("certificate has expired") != 1 {
			t.Errorf("afterwards:\n%s", &log)
		}
	})
	for before, want := range map[time.Duration]string{lead + time.Minute: "", lead - time.Minute: "expires at", -time.Second: "has expired"} {
		text := ""
		for _, p := range (Expiries{Own: k}).Problems(leaf.NotAfter.Add(-before)) {
			text += p.Kind + " " + p.Text
		}
		if want == "" && text != "" || !strings.Contains(text, want) || want != "" && !strings.Contains(text, "certificate "+files.Cert) {
			t.Errorf("problems %v before the end: %q, want %q", before, text, want)
		}
	}
	if n := testutil.CollectAndCount(Expiries{Own: k}); n != 2 { // the authority's, too
		t.Errorf("%d metrics", n)
	}
	if n := testutil.CollectAndCount(Expiries{}); n != 0 {
		t.Errorf("%d metrics without certificates", n)
	}
}
