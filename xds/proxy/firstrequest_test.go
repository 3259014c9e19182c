package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// pipes is a listener in memory that keeps the client's ends of its connections.
type pipes struct {
	*testkit.PipeListener
	ends []net.Conn
}

// dial returns the client's end of a new connection.
func (p *pipes) dial() net.Conn {
	c := testkit.Must(p.Dial(context.Background()))
	p.ends = append(p.ends, c)
	return c
}

const (
	testHead = resources.HeadersTimeout
	testIdle = connectionIdle
	question = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" // without a body, whose early answer ends the connection
)

// TestFirstRequest checks that a connection that is dialled ahead of its request still
// works an hour later: the time limit of the request head counts from its first byte.
func TestFirstRequest(t *testing.T) {
	certificates, roots := testCertificate()
	for name, do := range map[string]func(t *testing.T, p *pipes){
		"at once": func(t *testing.T, p *pipes) { requireAnswer(t, p.dial(), question) },
		"late": func(t *testing.T, p *pipes) {
			c := p.dial()
			time.Sleep(testIdle - 1)
			requireAnswer(t, c, question)
		},
		"again": func(t *testing.T, p *pipes) {
			c := p.dial()
			for range 3 {
				time.Sleep(testIdle / 2)
				requireAnswer(t, c, question)
			}
		},
		// http.Server reads the first 14 bytes separately.
		"torn": func(t *testing.T, p *pipes) {
			c := p.dial()
			time.Sleep(testHead - 1)
			write(t, c, question[:14])
			time.Sleep(testHead - 1)
			requireAnswer(t, c, question[14:])
		},
		"half a head": func(t *testing.T, p *pipes) {
			c := p.dial()
			time.Sleep(time.Minute)
			write(t, c, question[:14])
			requireClosed(t, c, testHead)
		},
		"slow head": func(t *testing.T, p *pipes) {
			c := p.dial()
			for i := range 10 {
				time.Sleep(testHead / 10)
				write(t, c, question[i:i+1])
			}
			requireClosed(t, c, testHead/10)
		},
		"never": func(t *testing.T, p *pipes) { requireClosed(t, p.dial(), testIdle) },
		"over TLS": func(t *testing.T, p *pipes) {
			c := p.dial()
			time.Sleep(testIdle / 2)
			s := tls.Client(c, &tls.Config{RootCAs: roots, ServerName: "example.com"})
			testkit.NoError(t, s.Handshake())
			time.Sleep(testIdle / 2)
			requireAnswer(t, s, question)
			time.Sleep(testIdle / 2)
			requireAnswer(t, s, question)
		},
		"half a handshake": func(t *testing.T, p *pipes) {
			c := p.dial()
			time.Sleep(time.Minute)
			write(t, c, "\x16\x03\x01")
			requireClosed(t, c, testHead)
		},
		"HTTP/2": func(t *testing.T, p *pipes) {
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			tr := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string,
				string) (net.Conn, error) {
				c := p.dial()
				time.Sleep(testIdle / 2)
				return c, nil
			}}
			defer tr.CloseIdleConnections()
			for range 2 {
				resp, err := (&http.Client{Transport: tr}).Post("http://x/v1/completions", "application/json",
					strings.NewReader("{}"))
				testkit.NoError(t, err)
				resp.Body.Close()
				if resp.StatusCode != http.StatusNotFound {
					t.Errorf("status %d", resp.StatusCode)
				}
				time.Sleep(testIdle / 2)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := New(Config{Client: routing.Config{Target: "127.0.0.1:1", NodeID: "proxy"},
				DrainTimeout: time.Second})
			testkit.NoError(t, err)
			secure := strings.Contains(name, "TLS") || strings.Contains(name, "handshake")
			p.cfg.TLS = &tls.Config{Certificates: certificates}
			p.apply(&resources.Routing{Proxy: resources.ProxySettings{IdleTimeout: time.Minute,
				BodyLimit: 1 << 20}}) // no model: 404
			synctest.Test(t, func(t *testing.T) {
				lis := &pipes{PipeListener: testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:1"))}
				s := p.start(secure, lis)
				defer func() {
					// Over TLS, a server's Close sends an alert to each client that
					// still reads.
					for _, c := range lis.ends {
						c.Close()
					}
					synctest.Wait()
					s.http.Close()
					<-s.ended
				}()
				do(t, lis)
			})
		})
	}
}

// write sends bytes and waits until the server has read them.
func write(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// requireAnswer sends a request, or the rest of one, and expects the proxy's own response, whose head it returns.
func requireAnswer(t *testing.T, c net.Conn, text string) *http.Response {
	t.Helper()
	go io.WriteString(c, text)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	testkit.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "model_not_found") {
		t.Fatalf("status %d: %s (%v)", resp.StatusCode, body, err)
	}
	return resp
}

// requireClosed expects the connection to be closed after this time without a response.
func requireClosed(t *testing.T, c net.Conn, after time.Duration) {
	t.Helper()
	begun := time.Now()
	got, err := io.ReadAll(c)
	if len(got) > 0 || err != nil && !errors.Is(err, io.ErrClosedPipe) || time.Since(begun) != after {
		t.Errorf("closed after %v with %q (%v), want %v and nothing", time.Since(begun), got, err, after)
	}
}
