package frontend

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver/servertest"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestAttackEarlyAnswers checks every answer that a front end gives before a request's
// body has arrived.
func TestAttackEarlyAnswers(t *testing.T) {
	serve := func(ready bool, bodyTimeout time.Duration) (address string) {
		srv := testkit.Must(New(Config{Replica: "r0", Engine: "http://127.0.0.1:1", Edges: policies.BucketEdges(1<<16, 4), MaxBody: 1 << 20, BodyTimeout: bodyTimeout}))
		srv.setReady(ready)
		l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
		s := &http.Server{Handler: srv.Handler(), Protocols: new(http.Protocols), ErrorLog: discardLog}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(l) }()
		t.Cleanup(func() { s.Close(); <-done })
		return l.Addr().String()
	}
	servertest.TestEarlyAnswers(t, serve(false, time.Minute),
		servertest.EarlyAnswer{Name: "engine away", Path: "/v1/completions", Status: 503})
	servertest.TestEarlyAnswers(t, serve(true, time.Minute),
		servertest.EarlyAnswer{Name: "path not served", Path: "/nothing/here", Status: 404},
		servertest.EarlyAnswer{Name: "too large", Path: "/v1/completions", Status: 413, Size: 1<<20 + 1, KnownSize: true},
		servertest.EarlyAnswer{Name: "too large", Path: "/v1/completions", Status: 413, Send: 1<<20 + 1, UnknownSize: true},
	)
	servertest.TestEarlyAnswers(t, serve(true, 100*time.Millisecond),
		servertest.EarlyAnswer{Name: "body too slow", Path: "/v1/completions", Status: 408, Send: 100},
	)
}
