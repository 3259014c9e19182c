package frontend

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestPeerRPC checks that the peers' port serves the migrators' gRPC, with and
// without TLS, that no timeout cuts a long stream of it, and that neither a drain
// nor the end of Run waits for it.
func TestPeerRPC(t *testing.T) {
	cert := httptest.NewTLSServer(nil)
	defer cert.Close()
	for _, secure := range []bool{false, true} {
		runInBubble(t, fmt.Sprint("TLS ", secure), func(t *testing.T) {
			ended := make(chan error, 1)
			rpc := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				if _, ok := w.(http.Flusher); !ok {
					t.Error("the writer cannot flush")
				}
				defer context.AfterFunc(r.Context(), func() { r.Body.Close() })()
				b := make([]byte, 4)
				for {
					if _, err := io.ReadFull(r.Body, b); err != nil {
						ended <- err
						return
					}
					w.Write(b)
					w.(http.Flusher).Flush()
				}
			})
			e := newEngine(t)
			scheme, transport := "http://", memory.transport(t, 2)
			if secure {
				scheme = "https://"
				transport.Protocols.SetHTTP2(true)
				transport.TLSClientConfig = cert.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			}
			f := startServer(t, e.URL, func(c *Config) {
				c.PeerRPC = rpc
				c.WriteTimeout, c.BodyTimeout, c.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
				if secure {
					config := cert.TLS.Clone()
					config.NextProtos = []string{"h2", "http/1.1"}
					c.PeerListener = tls.NewListener(c.PeerListener, config)
				}
			})
			client := &http.Client{Transport: transport}
			body, say := io.Pipe()
			defer say.Close()
			req, _ := http.NewRequestWithContext(context.Background(), "POST", scheme+f.peer+"/cascade.migrator.v1.Peer/Exchange", body)
			req.Header.Set("Content-Type", "application/grpc")
			answered := make(chan *http.Response, 1)
			go func() {
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					close(answered)
					return
				}
				answered <- resp
			}()
			io.WriteString(say, "ping")
			resp := <-answered
			if resp == nil {
				return
			}
			defer resp.Body.Close()
			b := make([]byte, 4)
			for range 3 {
				if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "ping" {
					t.Fatalf("%q, %v", b, err)
				}
				time.Sleep(60 * time.Millisecond) // longer than every timeout of a request
				io.WriteString(say, "ping")
			}
			// Other requests on the same connection are legs.
			leg := testkit.Must(client.Post(scheme+f.peer+"/v1/completions", "application/json", strings.NewReader(`{}`)))
			defer leg.Body.Close()
			if leg.StatusCode != http.StatusForbidden || leg.ProtoMajor != 2 {
				t.Errorf("%+v", leg)
			}
			f.Drain()
			if err := <-f.done; err != nil {
				t.Error(err)
			}
			f.done <- nil
			<-ended
		})
	}
}

// TestPeerListenerHandedOver checks that the peers' port can be passed to another
// process: connections stay open.
func TestPeerListenerHandedOver(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		testkit.Must(f.migrateLive(t.Context(), b.id, 1, nil))
		f.servers[1].cfg.PeerListener.Close()
		f.requireAnswer(b)
		select {
		case err := <-f.servers[1].done:
			t.Errorf("the server stopped: %v", err)
			f.servers[1].done <- err
		default:
		}
	})
}
