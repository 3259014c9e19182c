package processes

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/loopback"
)

// oracle computes the answer that every replica must give.
type oracle struct {
	url    string
	client *http.Client
	mu     sync.Mutex
	known  map[string]string
}

// newOracle runs an engine of a fleet's model, as fast as this host allows.
func newOracle(f *fleet) *oracle {
	f.t.Helper()
	a := loopback.Addresses(f.t, 1)[0]
	m := f.file.Models[0]
	p := start(f.t, "engine", "--model", m.Name, "--profile", f.path(m.Profile), "--context", fmt.Sprint(int64(m.Context)), "--listen", a, "--speed", "1000")
	p.await("emulating")
	return &oracle{url: "http://" + a + "/v1/completions", client: f.client, known: map[string]string{}}
}

// text returns the text that follows a body's prompt.
func (o *oracle) text(body []byte) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s, ok := o.known[string(body)]; ok {
		return s, nil
	}
	resp, err := o.client.Post(o.url, "application/json", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the oracle answers %s: %s: %w", resp.Status, answer, err)
	}
	s := gjson.GetBytes(answer, "choices.0.text").Str
	o.known[string(body)] = s
	return s, nil
}

// kind describes the requests of a load.
type kind struct {
	workers int
	words   []int // of the prompts, which cycle through these
	output  int   // tokens
}

// traffic runs clients that send requests without a pause, and checks every answer.
type traffic struct {
	t      testing.TB
	url    string
	oracle *oracle
	client *http.Client
	kind   kind
	stop   func() // ends the load once every request in progress is answered

	sent, streaming, failed atomic.Int64

	mu    sync.Mutex
	first []string // the first few failures
}

// newTraffic starts a load on a base URL.
func newTraffic(f *fleet, o *oracle, url string, k kind) *traffic {
	l := &traffic{t: f.t, url: url + "/v1/completions", oracle: o, client: newClient(), kind: k}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range k.workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(7, uint64(i)))
			for n := i; ctx.Err() == nil; n++ {
				body := prompt(i, k.words[rng.IntN(len(k.words))], k.output)
				err := l.sendOne(body, n%4 != 0)
				l.sent.Add(1)
				if err != nil {
					l.fail(err)
				}
			}
		})
	}
	l.stop = sync.OnceFunc(func() { cancel(); wg.Wait(); l.client.CloseIdleConnections() })
	f.t.Cleanup(l.stop)
	return l
}

func (l *traffic) fail(err error) {
	l.failed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.first) < 5 {
		l.first = append(l.first, err.Error())
	}
}

// waitForRequests waits until n more requests are answered.
func (l *traffic) waitForRequests(n int64) {
	l.t.Helper()
	goal := l.sent.Load() + n
	waitFor(l.t, fmt.Sprintf("%d more requests", n), func() bool { return l.sent.Load() >= goal })
}

// report fails the test if a request failed.
func (l *traffic) report() {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.Logf("%d requests, %d failed", l.sent.Load(), l.failed.Load())
	if l.failed.Load() > 0 || l.sent.Load() == 0 {
		l.t.Errorf("%d of %d requests failed; the first:\n%s", l.failed.Load(), l.sent.Load(), strings.Join(l.first, "\n"))
	}
}

// prompt returns a body with a prompt of the given words and output tokens; seed makes the prompt
// different.
func prompt(seed, words, output int) []byte {
	var b strings.Builder
	for i := range words {
		fmt.Fprintf(&b, "%s ", lexicon[(i*(i+7*seed)/3+seed)%len(lexicon)])
	}
	return fmt.Appendf(nil, `{"model":%q,"prompt":"%d %s","max_tokens":%d,"ignore_eos":true}`, llm, seed, b.String(), output)
}

var lexicon = strings.Fields("the replica gave its longest request away before its peers asked and no client that read along could see when")

// sendOne sends one request and checks the answer.
func (l *traffic) sendOne(body []byte, stream bool) error {
	want, err := l.oracle.text(body)
	if err != nil {
		return err
	}
	sent := body
	if stream {
		sent = append(body[:len(body)-1:len(body)-1], `,"stream":true}`...)
	}
	resp, err := l.client.Post(l.url, "application/json", bytes.NewReader(sent))
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	got := ""
	if stream {
		l.streaming.Add(1)
		defer l.streaming.Add(-1)
		got, err = read(resp.Body)
	} else {
		var text []byte
		text, err = io.ReadAll(resp.Body)
		got = gjson.GetBytes(text, "choices.0.text").Str
	}
	if err != nil || got != want {
		return fmt.Errorf("stream %v: %v: %s", stream, err, firstDifference(got, want))
	}
	return nil
}

// read returns the text of a completions stream up to its end mark.
func read(body io.Reader) (string, error) {
	var text strings.Builder
	err := readTo(&text, body)
	return text.String(), err
}

// readTo writes the text of a completions stream as it arrives, up to its end mark.
func readTo(text io.StringWriter, body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok:
		case string(data) == "[DONE]":
			return nil
		case gjson.GetBytes(data, "error").Exists():
			return errors.New(string(data))
		default:
			text.WriteString(gjson.GetBytes(data, "choices.0.text").Str)
		}
	}
	return fmt.Errorf("cut: %w", errors.Join(lines.Err(), io.ErrUnexpectedEOF))
}

// firstDifference shows where two texts begin to differ.
func firstDifference(got, want string) string {
	if got == want {
		return "the text is right"
	}
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	return fmt.Sprintf("%d bytes of %d are right, up to %q, then %.60q instead of %.60q", i, len(want), got[max(0, i-40):i], got[i:], want[i:])
}
