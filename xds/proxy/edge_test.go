package proxy

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestEdge checks that a plan with TLS for clients is served with the proxy's certificate, and
// not served without one.
func TestEdge(t *testing.T) {
	certificates, roots := testCertificate()
	for name, config := range map[string]*tls.Config{"certificate": {Certificates: certificates}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			c, f := newControl(t), newFront(t, "r0")
			v := twoStages([]*front{f, newFront(t, "r1")})
			v.Settings.Listen = "127.0.0.1:0"
			v.Settings.EdgeTLS, v.Edge = true, &resources.Certificate{Chain: []byte("not"), Key: []byte("fetched")}
			c.set(v, nil)
			p := c.runProxy(t, Config{TLS: config})
			if config == nil {
				<-p.applied
				if p.Addr() != nil {
					t.Errorf("bound at %v", p.Addr())
				}
				return
			}
			<-p.Ready()
			for _, h2 := range []bool{false, true} {
				transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
					ServerName: "example.com"}, ForceAttemptHTTP2: h2}
				resp, err := (&http.Client{Transport: transport}).Post("https://"+p.Addr().String()+"/v1",
					"text/plain", strings.NewReader("x"))
				testkit.NoError(t, err)
				resp.Body.Close()
				transport.CloseIdleConnections()
				if resp.StatusCode != 200 || resp.Header.Get("X-By") != "r0" || (resp.ProtoMajor == 2) != h2 {
					t.Errorf("%s %s, served by %q", resp.Proto, resp.Status, resp.Header.Get("X-By"))
				}
			}
		})
	}
}
