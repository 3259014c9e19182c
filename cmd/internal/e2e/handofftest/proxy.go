package handofftest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"
)

// Proxy stands between a front end and its engine. It changes and delays what they send to each
// other about KV, and checks each request that fetches KV: its prompt has exactly the ids of the KV.
type Proxy struct {
	URL string // of the proxy

	t      testing.TB
	engine string
	http   *http.Client

	mu      sync.Mutex
	hooks   Hooks
	fetched []int // ids of the prompts of the requests that fetched KV
}

// Hooks are what a Proxy does. All may be nil.
type Hooks struct {
	// Keep is called before the engine gets a request to keep KV, and Kept changes its answer.
	Keep func()
	Kept func(answer string) string
	// Fetch is called before the engine gets a request that continues a stream and fetches its KV, not
	// one that copies KV before the freeze. gaveUp is closed when the front end gives the request up.
	Fetch func(gaveUp <-chan struct{})
	Gate  *Gate // for streams
	// Cut is called with each event of a stream. If it returns true, the connection breaks after it.
	Cut func(event gjson.Result) bool
}

// Gate stops a stream at a length.
type Gate struct {
	at     func(ids int) bool // prompt included
	held   chan int           // gets the number of ids
	opened chan struct{}
	open   sync.Once
}

// NewGate returns a gate for one stream, which gets nothing more once at is true of its number of ids,
// the prompt's included, and its text ends with a character, until the gate is opened or the engine's
// answer is closed.
func NewGate(at func(ids int) bool) *Gate {
	return &Gate{at: at, held: make(chan int, 1), opened: make(chan struct{})}
}

// Open lets the stream go on, now or later.
func (g *Gate) Open() { g.open.Do(func() { close(g.opened) }) }

// pass is called after each event of a stream.
func (g *Gate) pass(ctx context.Context, ids int, event gjson.Result) {
	text := textOf(event)
	if text == "" || strings.HasSuffix(text, "\uFFFD") || !g.at(ids) {
		return
	}
	select {
	case g.held <- ids:
	default: // it was held already
	}
	select {
	case <-g.opened:
	case <-ctx.Done():
	}
}

// NewProxy runs a proxy of an engine until the test ends.
func NewProxy(t testing.TB, engine string, hooks Hooks) *Proxy {
	return newProxy(t, nil, engine, hooks)
}

func newProxy(t testing.TB, n *network, engine string, hooks Hooks) *Proxy {
	p := &Proxy{t: t, engine: engine, hooks: hooks, http: n.client(t)}
	p.URL, _ = n.serve(t, "127.0.0.1:0", http.HandlerFunc(p.serve))
	return p
}

// SetHooks replaces the hooks.
func (p *Proxy) SetHooks(h Hooks) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks = h
}

// Fetched returns how many ids had the prompts of the requests that fetched KV.
func (p *Proxy) Fetched() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int(nil), p.fetched...)
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	p.mu.Lock()
	h := p.hooks
	p.mu.Unlock()
	params := gjson.GetBytes(body, "kv_transfer_params")
	keeps := params.Get("do_remote_decode").Bool()
	switch {
	case keeps:
		if h.Keep != nil {
			h.Keep()
		}
	case params.Get("do_remote_prefill").Bool():
		n := CheckFetch(p.t, body, params)
		p.mu.Lock()
		p.fetched = append(p.fetched, n)
		p.mu.Unlock()
		if h.Fetch != nil && gjson.GetBytes(body, "stream").Bool() {
			h.Fetch(r.Context().Done())
		}
	}
	p.forward(w, r, body, keeps, h)
}

// CheckFetch returns how many ids the prompt of a request that fetches KV has. The test fails unless
// they are those of the KV. params are the request's kv_transfer_params.
func CheckFetch(t testing.TB, body []byte, params gjson.Result) int {
	t.Helper()
	prompt := gjson.GetBytes(body, "prompt")
	if chat := params.Get("prompt_token_ids"); chat.Exists() {
		prompt = chat
	}
	n := len(prompt.Array())
	if kv := params.Get("remote_num_tokens").Int(); int64(n) != kv {
		t.Errorf("a prompt of %d ids for the KV of %d", n, kv)
	}
	return n
}

// forward sends a request on, and the answer back. What goes wrong on the engine's side breaks the
// connection, as the engine itself would.
func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, body []byte, keeps bool, h Hooks) {
	out, err := http.NewRequestWithContext(r.Context(), r.Method, p.engine+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = r.Header.Clone()
	resp, err := p.http.Transport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	for name, values := range resp.Header {
		if name != "Content-Length" { // Kept may change it
			w.Header()[name] = values
		}
	}
	w.WriteHeader(resp.StatusCode)
	switch {
	case keeps && h.Kept != nil:
		var answer []byte
		if answer, err = io.ReadAll(resp.Body); err == nil {
			_, err = io.WriteString(w, h.Kept(string(answer)))
		}
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		err = copyStream(r.Context(), w, resp.Body, h)
	default:
		_, err = io.Copy(w, resp.Body)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// errCut is the end of a stream whose hook breaks it.
var errCut = errors.New("cut")

// textOf returns the text of an event, reasoning or not.
func textOf(event gjson.Result) string {
	return event.Get("choices.0.text").Str + event.Get("choices.0.delta.content").Str + event.Get("choices.0.delta.reasoning").Str
}

// copyStream copies events as they come, past a gate unless it is nil.
func copyStream(ctx context.Context, w http.ResponseWriter, events io.Reader, h Hooks) error {
	flush := http.NewResponseController(w)
	lines := bufio.NewReader(events)
	var a answer
	for {
		line, err := lines.ReadBytes('\n')
		if _, failed := w.Write(line); failed != nil {
			return failed
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		data, ok := strings.CutPrefix(string(line), "data: ")
		if !ok {
			if err := flush.Flush(); err != nil { // an event ends with an empty line
				return err
			}
			if h.Gate != nil && a.last.Exists() {
				h.Gate.pass(ctx, a.prompt+len(a.ids), a.last)
			}
			if h.Cut != nil && a.last.Exists() && h.Cut(a.last) {
				return errCut
			}
			continue
		}
		if strings.HasPrefix(data, "{") {
			a.add(gjson.Parse(data))
		}
	}
}
