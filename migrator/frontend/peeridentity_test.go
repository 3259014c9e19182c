package frontend

import (
	"bytes"
	"crypto/tls"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
)

// TestPeerCertificateNamesFrontEnd checks that a leg is served for the front end
// whose migrator's certificate it comes with, and for no other, whatever its
// header fields say.
func TestPeerCertificateNamesFrontEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		a := issuer.New(t)
		logged := &bytes.Buffer{}
		f := startServer(t, e.URL, func(c *Config) {
			c.TrustDomain, c.Replica = issuer.TrustDomain, "r1"
			c.Logger = slog.New(slog.NewTextHandler(logged, nil))
		})
		server := &httptest.Server{Listener: listen(), Config: &http.Server{Handler: f.PeerHandler()}}
		server.EnableHTTP2, server.TLS = true, a.ServerTLS(a.ComponentCertificate(t, identity.Migrator, "r1"))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		defer server.Close()
		leg := func(own tls.Certificate, front, request string) (int, string) {
			t.Helper()
			client := &http.Client{Transport: &http.Transport{DialContext: memory.dial, ForceAttemptHTTP2: true, TLSClientConfig: a.ClientTLS(own, identity.Matcher{TrustDomain: issuer.TrustDomain, Role: identity.Migrator, Name: "r1"})}}
			defer client.CloseIdleConnections()
			req := testkit.Must(http.NewRequest(http.MethodPost, server.URL+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`)))
			if front != "" {
				req.Header.Set(ForwardHeader, front)
			}
			if request != "" {
				req.Header.Set(RequestHeader, request)
				req.Header.Set(LegEpochHeader, "1")
			}
			resp := testkit.Must(client.Do(req))
			defer resp.Body.Close()
			body := testkit.Must(io.ReadAll(resp.Body))
			return resp.StatusCode, string(body)
		}
		r0 := a.ComponentCertificate(t, identity.Migrator, "r0")
		for name, c := range map[string]struct {
			own            tls.Certificate
			front, request string
			want           int
		}{
			"its own":             {r0, "r0", "r0/1", http.StatusOK},
			"its own, no name":    {r0, "r0", "", http.StatusOK},
			"another front":       {r0, "r2", "r2/1", http.StatusForbidden},
			"another's request":   {r0, "r0", "r2/1", http.StatusServiceUnavailable},
			"no front":            {r0, "", "", http.StatusForbidden},
			"a long name":         {r0, strings.Repeat("r", 4000), "", http.StatusForbidden},
			"a proxy":             {a.ComponentCertificate(t, identity.Proxy, "r0"), "r0", "", http.StatusForbidden},
			"the control plane":   {a.ComponentCertificate(t, identity.Control, "r0"), "r0", "", http.StatusForbidden},
			"without an identity": {a.Certificate(t), "r0", "", http.StatusForbidden},
		} {
			before := e.calls.Load()
			status, body := leg(c.own, c.front, c.request)
			if status != c.want || len(body) > 1<<10 {
				t.Errorf("%s: %d %.300s, want %d", name, status, body, c.want)
			}
			if served := e.calls.Load() - before; (served == 1) != (c.want == http.StatusOK) {
				t.Errorf("%s: the engine was asked %d times", name, served)
			}
		}
		if got := strings.Count(logged.String(), "leg refused"); got == 0 {
			t.Errorf("logged %d times:\n%s", got, logged)
		}
		// Without TLS there is no certificate.
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{}`))
		r.Header.Set(ForwardHeader, "r0")
		if f.PeerHandler().ServeHTTP(w, r); w.Code != http.StatusForbidden {
			t.Errorf("without TLS: %d", w.Code)
		}
	})
}
