// Package handofftest tests engines that keep their own KV, the emulator's and stock vLLM: the same tests run against
// both, in this package and in package stock.
//
//   - Streams move between two engines, and what the client reads is compared with what the engine answers by itself.
//     The front ends run in the test's process, so that it chooses when and where a stream moves.
//   - KV events: the number of tokens that the index knows of a prompt is the number that the engine then finds in its
//     prefix cache. Before each comparison a request with a prompt of its own is sent, and the test waits until the
//     index knows its block: events come in order, so that the index then has all that came before.
//
// The package's own tests also play every row of the table of failures that was measured on vLLM 0.32.0, on emulated
// engines that fail like it, in the virtual time of testing/synctest and on a network in memory: leases and timeouts
// have their real lengths. Whatever fails, the client's stream goes on with the token ids of the uninterrupted run, and
// no engine dies.
package handofftest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// maxEvent bounds an event of a stream: the first one has the ids of the prompt.
const maxEvent = 1 << 20

// readyInterval is how often a client looks whether its stream may move.
const readyInterval = 20 * time.Millisecond

// Pair is two front ends, r0 and r1, each with an engine.
type Pair struct {
	Front   [2]*frontend.Server
	Engines [2]string // base URLs
	Model   string    // that both serve
	Log     testkit.Log
	// WholeChats says that the engines' own streams of chats have no ids: they are asked for whole answers.
	WholeChats bool

	t       testing.TB
	net     *network
	http    *http.Client
	clients [2]string // base URLs of the front ends
	peers   [2]string // addresses of their peer listeners
	// oracle, if not nil, returns the answer of an engine that was never asked for anything else; nil: an engine of the
	// pair is asked.
	oracle func(Stream) answer
}

// New runs front ends of two engines until the test ends, and returns once they serve. edit, if
// not nil, edits their configuration.
func New(t testing.TB, model string, engines [2]string, edit func(*frontend.Config)) *Pair {
	return newPair(t, nil, model, engines, edit)
}

func newPair(t testing.TB, n *network, model string, engines [2]string, edit func(*frontend.Config)) *Pair {
	p := &Pair{Engines: engines, Model: model, t: t, net: n, http: n.client(t)}
	for i := range engines {
		clients, peers := testkit.Must(n.Listen("tcp", "127.0.0.1:0")), testkit.Must(n.Listen("tcp", "127.0.0.1:0"))
		c := frontend.Config{Replica: replica(i), Engine: engines[i], Edges: policies.BucketEdges(1<<16, 4), Listener: clients, PeerListener: peers,
			Listen: n.Listen, Dial: n.Dial, Handoff: true, Rescuer: p, Logger: p.Log.Logger(),
			MigrationTimeout: time.Minute, HealthTimeout: time.Minute, HangTimeout: time.Minute, MinPause: time.Minute} // the host may be busy
		if edit != nil {
			edit(&c)
		}
		p.clients[i], p.peers[i] = "http://"+clients.Addr().String(), peers.Addr().String()
		p.Front[i] = testkit.Must(frontend.New(c))
		t.Cleanup(testkit.Run(t, p.Front[i].Run))
	}
	for _, f := range p.Front {
		testkit.WaitFor(t, "the front ends are ready", func() bool { return f.Status().EngineReady })
	}
	return p
}

// NewProxied is New with a Proxy without hooks before each engine.
func NewProxied(t testing.TB, model string, engines [2]string, edit func(*frontend.Config)) (*Pair, [2]*Proxy) {
	proxies := [2]*Proxy{NewProxy(t, engines[0], Hooks{}), NewProxy(t, engines[1], Hooks{})}
	return New(t, model, engines, func(c *frontend.Config) {
		if edit != nil {
			edit(c)
		}
		c.Engine = proxies[0].URL
		if c.Replica == replica(1) {
			c.Engine = proxies[1].URL
		}
	}), proxies
}

func replica(i int) policies.ReplicaID { return policies.ReplicaID(fmt.Sprint("r", i)) }

// target returns a replica as a target of migrations.
func (p *Pair) target(i int) policies.Target {
	return policies.Target{Replica: replica(i), Address: p.peers[i]}
}

// Rescue implements frontend.Rescuer.
func (p *Pair) Rescue(_ policies.Request, tried []policies.ReplicaID) (policies.Target, bool) {
	for i := range p.Front {
		if !slices.Contains(tried, replica(i)) {
			return p.target(i), true
		}
	}
	return policies.Target{}, false
}

// Stream is a request whose stream moves.
type Stream struct {
	At     int      // the replica whose front end the client asks
	Prompt []uint32 // of a completion
	Text   string   // of a chat, if there is no Prompt
	Output int      // tokens of the answer, exactly
	Moves  []int    // after how many tokens the client has, each time to the other replica
	// After is how many tokens the client reads after the last move before it leaves; 0 for all.
	After int
	// Gate, if not nil, is one of the proxy of the present holder's engine: the move is asked for when
	// the stream is held there.
	Gate *Gate
	// Leave, if not nil, ends the stream from the client's side once it is closed.
	Leave <-chan struct{}
	// Ready, if not nil, says when a move that is due is asked for; otherwise it is when no engine is
	// busy. It is called until it returns true.
	Ready func() bool
	// More are further fields of the request.
	More map[string]any
	// AskOther says that the engine of the other replica is asked for the uninterrupted answer.
	AskOther bool
	// KeepsKV says that the last move is one away from a prefill replica, which must keep the stream's KV.
	KeepsKV bool
}

// busy reports whether an engine's latest report shows requests that wait, so that its front end
// asks it for no handoff. The stream itself may have been one when its engine was asked.
func (p *Pair) busy() bool { return p.Front[0].EngineLoad().Busy() || p.Front[1].EngineLoad().Busy() }

// Moved is a move of a stream.
type Moved struct {
	frontend.MigrationResult
	Length int // of the stream when the move was asked for
	Err    error
	// Pause is the longest that the client waited for an event between the request for the move and
	// the first event after its end.
	Pause time.Duration
	// Reasoning says that the client had reasoning only when the move was asked for.
	Reasoning bool
}

// path and body are the request, which asks for ids.
func (s Stream) path() string {
	if s.Prompt == nil {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func (s Stream) body(model string) []byte {
	fields := map[string]any{"model": model, "max_tokens": s.Output, "temperature": 0, "ignore_eos": true, "return_token_ids": true, "stream": true}
	maps.Copy(fields, s.More)
	if s.Prompt == nil {
		fields["messages"] = []map[string]string{{"role": "user", "content": s.Text}}
	} else {
		fields["prompt"] = s.Prompt
	}
	return testkit.Must(json.Marshal(fields))
}

// answer is what a client reads.
type answer struct {
	ids             []uint32
	text, reasoning string
	prompt          int
	finish, usage   string       // usage: tokens of the prompt and of the output, if the stream has them
	last            gjson.Result // the latest event, or the whole answer
}

func (a *answer) add(event gjson.Result) {
	a.last = event
	if n := len(event.Get("prompt_token_ids").Array()) + len(event.Get("choices.0.prompt_token_ids").Array()); n > 0 {
		a.prompt = n
	}
	choice := event.Get("choices.0")
	for _, id := range append(choice.Get("token_ids").Array(), choice.Get("response_token_ids").Array()...) {
		a.ids = append(a.ids, uint32(id.Uint()))
	}
	for _, field := range [...]string{"text", "delta.content", "message.content"} {
		a.text += choice.Get(field).Str
	}
	a.reasoning += choice.Get("delta.reasoning").Str
	if reason := choice.Get("finish_reason").Str; reason != "" {
		a.finish = reason
	}
	if u := event.Get("usage"); u.IsObject() && !choice.Exists() {
		a.usage = fmt.Sprint(u.Get("prompt_tokens"), " ", u.Get("completion_tokens"))
	}
}

// from shows the answer from one of its tokens on.
func (a *answer) from(token int) string {
	return fmt.Sprintf("%v…\nreasoning %q\ntext %q\nfinish %q, usage %q", a.ids[token:], a.reasoning, a.text, a.finish, a.usage)
}

// isBeginningOf reports whether a client that has left has read the beginning of an answer; it may lack the rest of a
// character. complete says that it has read all of it. Whether the beginning of a character, "\ufffd", ends the reasoning
// depends on how vLLM has divided the stream into events, so that is not compared.
func (a *answer) isBeginningOf(all *answer, complete bool) bool {
	reasoning, allReasoning := strings.TrimSuffix(a.reasoning, "\ufffd"), strings.TrimSuffix(all.reasoning, "\ufffd")
	return slices.Equal(a.ids, all.ids) && strings.HasPrefix(all.text, a.text) && strings.HasPrefix(allReasoning, reasoning) &&
		(!complete || a.text == all.text && a.finish == all.finish && a.usage == all.usage) && (a.text == "" && !complete || reasoning == allReasoning)
}

// Play plays a stream with its moves, and compares it with the engine's own answer to the same
// request, which it asks for afterwards: it must not warm anything. A failed move leaves the
// stream where it is.
func (p *Pair) Play(s Stream) []Moved {
	p.t.Helper()
	ctx, leave := context.WithCancel(p.t.Context())
	defer leave()
	resp, err := tryPost(ctx, p.http, p.clients[s.At]+s.path(), s.body(p.Model))
	testkit.NoError(p.t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	c := client{pair: p, stream: s, results: make(chan Moved)}
	done, left := c.read(readEvents(ctx, lines))
	leave()
	if c.moving {
		c.moves = append(c.moves, <-c.results)
	}
	s.Output = len(c.got.ids)
	if s.Output == 0 {
		p.t.Fatalf("no token, ended %v, moves %+v\n%s", done, c.moves, &p.Log)
	}
	if want := p.ask(s); !done || !c.got.isBeginningOf(&want, !left) {
		at := 0
		for at < min(len(c.got.ids), len(want.ids)) && c.got.ids[at] == want.ids[at] {
			at++
		}
		p.t.Fatalf("%d tokens of a prompt of %d, ended %v, moves %+v: the client reads\n%s\nwant\n%s\n%s", s.Output, c.got.prompt, done, c.moves,
			c.got.from(at), want.from(at), &p.Log)
	}
	return c.moves
}

// client is the client of a stream that moves.
type client struct {
	pair    *Pair
	stream  Stream
	got     answer
	moves   []Moved
	moving  bool
	results chan Moved

	last  time.Time     // of the event before
	pause time.Duration // the longest since the latest move was asked for
}

// read reads events and asks for the moves. done says that the stream is complete, or that the client has left as it
// was to.
func (c *client) read(events <-chan string) (done, left bool) {
	s, enough := c.stream, math.MaxInt
	var held <-chan int
	least := 0 // ids that the client has before a move
	if s.Gate != nil {
		held, least = s.Gate.held, math.MaxInt
	}
	ready := s.Ready
	if ready == nil {
		ready = func() bool { return !c.pair.busy() }
	}
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for {
		if len(c.got.ids) >= enough {
			return true, true
		}
		select {
		case <-s.Leave:
			return true, true
		case least = <-held:
		case <-tick.C: // a stream that is held has no events
			if c.mayMove(least) && ready() {
				c.move()
			}
		case m := <-c.results:
			if c.moves, c.moving = append(c.moves, m), false; s.After > 0 && len(c.moves) == len(s.Moves) {
				enough = len(c.got.ids) + s.After
			}
			if s.Gate != nil {
				s.Gate.Open()
			}
		case e, ok := <-events:
			if !ok || e == "[DONE]" {
				return ok, false
			}
			c.got.add(gjson.Parse(e))
			c.measure()
		}
	}
}

// mayMove reports whether the next move is due, once the client has so many ids.
func (c *client) mayMove(least int) bool {
	return !c.moving && len(c.moves) < len(c.stream.Moves) && len(c.got.ids) >= c.stream.Moves[len(c.moves)] && c.got.prompt+len(c.got.ids) >= least
}

// move asks for the next move.
func (c *client) move() {
	c.moving, c.pause, c.last = true, 0, time.Now()
	id, length := c.pair.streamOf(c.stream.At), c.got.prompt+len(c.got.ids)
	reasoning := c.got.reasoning != "" && c.got.text == ""
	keepsKV := c.stream.KeepsKV && len(c.moves) == len(c.stream.Moves)-1
	go func() {
		m := c.pair.move(c.stream.At, id, length, keepsKV)
		m.Reasoning = reasoning
		c.results <- m
	}()
}

// measure notes how long the client has waited for an event.
func (c *client) measure() {
	if c.last.IsZero() {
		return
	}
	now := time.Now()
	c.pause, c.last = max(c.pause, now.Sub(c.last)), now
	if !c.moving && len(c.moves) > 0 {
		c.moves[len(c.moves)-1].Pause, c.last = c.pause, time.Time{}
	}
}

// readEvents sends the data of a stream's events, until it ends or ctx does.
func readEvents(ctx context.Context, lines *bufio.Scanner) <-chan string {
	events := make(chan string)
	go func() {
		defer close(events)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				select {
				case events <- data:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return events
}

// ask returns the engine's own answer. It is streamed, too: vLLM loses the beginning of a character before the end of
// the reasoning in streams only.
func (p *Pair) ask(s Stream) answer {
	if p.oracle != nil {
		return p.oracle(s)
	}
	at := s.At
	if s.AskOther {
		at = 1 - at
	}
	whole := p.WholeChats && s.Prompt == nil
	if whole {
		s.More = map[string]any{"stream": false}
	}
	a, err := p.tryAsk(p.Engines[at], s, whole)
	testkit.NoError(p.t, err)
	return a
}

// tryAsk returns the answer of a base URL, whole or as a stream, on any goroutine.
func (p *Pair) tryAsk(url string, s Stream, whole bool) (a answer, err error) {
	resp, err := tryPost(p.t.Context(), p.http, url+s.path(), s.body(p.Model))
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	if whole {
		text, err := io.ReadAll(resp.Body)
		a.add(gjson.ParseBytes(text))
		return a, err
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: {"); ok {
			a.add(gjson.Parse("{" + data))
		}
	}
	return a, lines.Err()
}

// endpoint is an engine, or the front end of one, that completes prompts.
type endpoint struct {
	t     testing.TB
	http  *http.Client
	model string
	url   string // base URL
}

// tryComplete returns the ids of so many tokens after a prompt and the whole answer, on any goroutine. more are further
// fields of the request.
func (e endpoint) tryComplete(ctx context.Context, prompt []uint32, tokens int, more map[string]any) ([]uint32, gjson.Result, error) {
	fields := map[string]any{"stream": false}
	maps.Copy(fields, more)
	var a answer
	text, err := readPost(ctx, e.http, e.url+"/v1/completions", Stream{Prompt: prompt, Output: tokens, More: fields}.body(e.model))
	if err == nil {
		a.add(gjson.ParseBytes(text))
	}
	return a.ids, a.last, err
}

// complete is tryComplete on the test's goroutine.
func (e endpoint) complete(prompt []uint32, tokens int, more map[string]any) ([]uint32, gjson.Result) {
	e.t.Helper()
	ids, all, err := e.tryComplete(e.t.Context(), prompt, tokens, more)
	testkit.NoError(e.t, err)
	return ids, all
}

// sources reads the engine's counters.
func (e endpoint) sources() Sources {
	count := func(source string) float64 {
		return Counter(e.t, e.http, e.url, "vllm:prompt_tokens_by_source_total", `source="`+source+`"`)
	}
	return Sources{count("local_compute"), count("local_cache_hit"), count("external_kv_transfer")}
}

// randomIDs returns n ids of a prompt.
func randomIDs(rng *rand.Rand, n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = 5 + rng.Uint32N(1000)
	}
	return ids
}

// readPost sends a body and returns that of the answer.
func readPost(ctx context.Context, client *http.Client, url string, body []byte) ([]byte, error) {
	resp, err := tryPost(ctx, client, url, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// tryPost sends a body and returns the answer, which has status 200.
func tryPost(ctx context.Context, client *http.Client, url string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		err = fmt.Errorf("%s: %s: %s", url, resp.Status, text)
	}
	return resp, err
}

// streamOf returns the id of the one stream of a front end's clients.
func (p *Pair) streamOf(front int) (id string) {
	p.Front[front].EachStream(func(s *frontend.Stream) bool { id = s.Request().ID; return false })
	return id
}

// move moves a stream to the other replica.
func (p *Pair) move(front int, id string, length int, keepsKV bool) Moved {
	h, ok := p.Front[front].Holder(id)
	if !ok {
		return Moved{Length: length, Err: frontend.ErrNoStream}
	}
	from, to := 0, 1
	if h.Replica == replica(1) {
		from, to = 1, 0
	}
	result, err := p.Front[front].Migrate(context.Background(), frontend.Migration{Stream: id, From: h.Replica, FromAddress: p.peers[from], Epoch: h.Epoch, To: p.target(to), Cached: -1, KeepsKV: keepsKV})
	return Moved{MigrationResult: result, Length: length, Err: err}
}

// Sources is how many prompt tokens an engine got from where.
type Sources struct{ Computed, Cached, Fetched float64 }

// Sources reads an engine's counters.
func (p *Pair) Sources(engine int) Sources { return p.endpoint(p.Engines[engine]).sources() }

// endpoint returns the engine or the front end that has a base URL.
func (p *Pair) endpoint(url string) endpoint { return endpoint{p.t, p.http, p.Model, url} }

// Sub returns what has been added since before.
func (s Sources) Sub(before Sources) Sources {
	return Sources{s.Computed - before.Computed, s.Cached - before.Cached, s.Fetched - before.Fetched}
}

// Counter returns the sum of an engine's series of a metric that have a label.
func (p *Pair) Counter(engine int, metric, label string) float64 {
	return Counter(p.t, p.http, p.Engines[engine], metric, label)
}

// Counter returns the sum of the series of a metric, of the engine with a base URL, whose labels contain a text.
func Counter(t testing.TB, client *http.Client, engine, metric, label string) float64 {
	t.Helper()
	sum, err := ReadCounter(client, engine, metric, label)
	testkit.NoError(t, err)
	return sum
}

// ReadCounter is Counter for goroutines other than the test's.
func ReadCounter(client *http.Client, engine, metric, label string) (sum float64, err error) {
	resp, err := client.Get(engine + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var v float64
		if rest, found := strings.CutPrefix(line, metric+"{"); found && strings.Contains(rest, label) {
			fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v)
			sum += v
		}
	}
	return sum, nil
}
