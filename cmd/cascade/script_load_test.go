package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/rogpeppe/go-internal/testscript"
)

// loadClient sends requests without a pause, from several clients.
type loadClient struct {
	stop  context.CancelFunc
	wg    sync.WaitGroup
	asked atomic.Int64
	mu    sync.Mutex
	bad   []string
}

// loadClientKey finds the loadClient of a script.
type loadClientKey struct{}

// clientsPerProtocol is the number of clients that use each protocol.
const clientsPerProtocol = 3

func startLoad(ts *testscript.TestScript, neg bool, args []string) {
	h := ts.Value(loadClientKey{}).(*loadClient)
	body := []byte(ts.ReadFile(args[1]))
	ctx, stop := context.WithCancel(context.Background())
	h.stop = stop
	ts.Defer(func() { stop(); h.wg.Wait() })
	for range clientsPerProtocol {
		for _, http2 := range []bool{false, true} {
			h.wg.Go(func() {
				for ctx.Err() == nil {
					h.ask(args[0], body, http2)
				}
			})
		}
	}
}

// ask sends one streamed request on a connection of its own.
func (h *loadClient) ask(url string, body []byte, http2 bool) {
	var protocols http.Protocols
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	tr := &http.Transport{Protocols: &protocols}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: patience}
	resp, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		h.fail("request: %v", err)
		return
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(string(text)), "[DONE]") {
		h.fail("answer: %s, %v: %s", resp.Status, err, text)
		return
	}
	h.asked.Add(1)
}

func (h *loadClient) fail(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bad = append(h.bad, fmt.Sprintf(format, args...))
}

func stopLoad(ts *testscript.TestScript, neg bool, args []string) {
	h := ts.Value(loadClientKey{}).(*loadClient)
	h.stop()
	h.wg.Wait()
	ts.Logf("%d requests were answered", h.asked.Load())
	if len(h.bad) > 0 || h.asked.Load() == 0 {
		ts.Fatalf("%d of %d requests failed; first: %s", len(h.bad), h.asked.Load()+int64(len(h.bad)), strings.Join(h.bad[:min(3, len(h.bad))], "\n"))
	}
}
