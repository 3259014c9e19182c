package emulator

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Every stream of a server on virtual time is complete, also the later ones on a connection.
func TestStreamsOfOneConnectionAreComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		listener := testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:1"))
		server := &http.Server{Handler: e.Handler()}
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.Dial(ctx) }}
		client := http.Client{Transport: transport}
		var clients sync.WaitGroup
		for i := range 16 {
			clients.Go(func() {
				time.Sleep(time.Duration(i) * 37 * time.Millisecond)
				for n := range 4 {
					body := fmt.Sprintf(`{"prompt":"a b c %d","max_tokens":%d,"stream":true,"ignore_eos":true,"return_token_ids":true}`, 4*i+n, 1+20*i)
					answer, err := client.Post("http://engine/v1/completions", "application/json", strings.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					got, err := io.ReadAll(answer.Body)
					if err != nil || answer.Body.Close() != nil || !strings.HasSuffix(string(got), "data: [DONE]\n\n") {
						t.Errorf("client %d, request %d: status %d, %v, ends with %q", i, n, answer.StatusCode, err, got[max(0, len(got)-100):])
					}
				}
			})
		}
		clients.Wait()
		transport.CloseIdleConnections()
		testkit.NoError(t, server.Close())
		testkit.WantError(t, <-served, "Server closed")
	})
}

// A handler that is woken for a token that it has taken already, with an earlier one, writes no
// event without tokens: clients count events.
func TestNoEventWithoutTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		r := post("/v1/completions", `{"prompt":"a","max_tokens":5,"ignore_eos":true,"stream":true,"return_token_ids":true}`)
		r.Header.Set(legHeader, "a")
		answer := make(chan string, 1)
		go func() { answer <- serveRequest(e, r).Body.String() }()
		time.Sleep(25 * time.Millisecond) // two tokens of virtual time
		synctest.Wait()
		e.mu.Lock()
		st := e.legs["a"]
		e.mu.Unlock()
		st.wake()
		if got := <-answer; strings.Count(got, "data: {") != 5 || strings.Contains(got, `"token_ids":[]`) {
			t.Errorf("not five events with one token each: %s", got)
		}
	})
}
