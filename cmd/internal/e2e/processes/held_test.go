package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"unicode/utf8"
)

// forever is the output of streams that outlast their test, however slow the host is: some minutes
// at speed 1.
const forever = 14_000

// held is a stream that continues until its client disconnects.
type held struct {
	body  []byte
	leave context.CancelFunc
	over  chan struct{}

	mu   sync.Mutex
	text strings.Builder // received so far
	err  error           // valid once over
}

// hold starts a stream at a base URL.
func (f *fleet) hold(url string, body []byte) *held {
	ctx, cancel := context.WithCancel(context.Background())
	h := &held{body: body, leave: cancel, over: make(chan struct{})}
	f.t.Cleanup(func() { cancel(); <-h.over })
	sent := append(body[:len(body)-1:len(body)-1], `,"stream":true}`...)
	go func() {
		defer close(h.over)
		h.err = h.read(ctx, f.client, url+"/v1/completions", sent)
	}()
	return h
}

func (h *held) read(ctx context.Context, client *http.Client, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return readTo(h, resp.Body)
}

// WriteString implements io.StringWriter.
func (h *held) WriteString(s string) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.WriteString(s)
}

func (h *held) length() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.Len()
}

// waitForGrowth waits until every stream has received more text.
func waitForGrowth(f *fleet, streams []*held) {
	f.t.Helper()
	for i, h := range streams {
		was := h.length()
		waitFor(f.t, fmt.Sprintf("stream %d goes on", i), func() bool {
			select {
			case <-h.over:
				f.t.Fatalf("stream %d is over: %v", i, h.err)
			default:
			}
			return h.length() > was+40
		})
	}
}

// disconnectAll disconnects the clients and checks the text that they received: it must be the beginning
// of the answer, byte for byte.
func disconnectAll(f *fleet, o *oracle, streams []*held) {
	f.t.Helper()
	for i, h := range streams {
		h.leave()
		<-h.over
		if !errors.Is(h.err, context.Canceled) {
			f.t.Errorf("stream %d: %v", i, h.err)
		}
		want, err := o.text(h.body)
		if err != nil {
			f.t.Fatal(err)
		}
		got := h.text.String()
		for n := 0; n < utf8.UTFMax && !strings.HasPrefix(want, got) && got != ""; n++ {
			_, size := utf8.DecodeLastRuneInString(got) // of an incomplete character
			got = got[:len(got)-size]
		}
		if got == "" || !strings.HasPrefix(want, got) {
			f.t.Errorf("stream %d: %s", i, firstDifference(h.text.String(), want))
		}
	}
}
