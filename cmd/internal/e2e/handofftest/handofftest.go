// Package handofftest moves streams between two engines that keep their own KV, and compares
// what the client reads with what the engine answers by itself. The engines are the emulator's
// or stock vLLM's; the front ends run in the test's process, so that it chooses when and where a
// stream moves.
package handofftest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// maxEvent bounds an event of a stream: the first one has the ids of the prompt.
const maxEvent = 1 << 20

// Pair is two front ends, r0 and r1, each with an engine.
type Pair struct {
	Front   [2]*frontend.Server
	Engines [2]string // base URLs
	Model   string    // that both serve
	Log     testkit.Log

	t       testing.TB
	clients [2]string // base URLs of the front ends
	peers   [2]string // addresses of their peer listeners
}

// New runs front ends of two engines until the test ends, and returns once they serve. edit, if
// not nil, edits their configuration.
func New(t testing.TB, model string, engines [2]string, edit func(*frontend.Config)) *Pair {
	p := &Pair{Engines: engines, Model: model, t: t}
	for i := range engines {
		clients, peers := testkit.Must(net.Listen("tcp", "127.0.0.1:0")), testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
		c := frontend.Config{Replica: replica(i), Engine: engines[i], Edges: policies.BucketEdges(1<<16, 4), Listener: clients, PeerListener: peers,
			Handoff: true, Rescuer: p, Logger: p.Log.Logger(),
			MigrationTimeout: time.Minute, HealthTimeout: time.Minute, HangTimeout: time.Minute} // the host may be busy
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

func replica(i int) policies.ReplicaID { return policies.ReplicaID(fmt.Sprint("r", i)) }

// target returns a replica as a target of migrations.
func (p *Pair) target(i int) frontend.Target {
	return frontend.Target{Replica: replica(i), Address: p.peers[i]}
}

// Rescue implements frontend.Rescuer.
func (p *Pair) Rescue(_ policies.Request, tried []policies.ReplicaID) (frontend.Target, bool) {
	for i := range p.Front {
		if !slices.Contains(tried, replica(i)) {
			return p.target(i), true
		}
	}
	return frontend.Target{}, false
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
}

// busy reports whether an engine's latest report shows requests that wait, so that its front end
// asks it for no handoff. The stream itself may have been one when its engine was asked.
func (p *Pair) busy() bool { return p.Front[0].EngineLoad().Busy() || p.Front[1].EngineLoad().Busy() }

// Moved is a move of a stream.
type Moved struct {
	frontend.MigrationResult
	Length int // of the stream when the move was asked for
	Err    error
}

// path and body are the request, which asks for ids.
func (s Stream) path() string {
	if s.Prompt == nil {
		return "/v1/chat/completions"
	}
	return "/v1/completions"
}

func (s Stream) body(model string, stream bool) []byte {
	fields := map[string]any{"model": model, "max_tokens": s.Output, "temperature": 0, "ignore_eos": true, "return_token_ids": true, "stream": stream}
	if s.Prompt == nil {
		fields["messages"] = []map[string]string{{"role": "user", "content": s.Text}}
	} else {
		fields["prompt"] = s.Prompt
	}
	return testkit.Must(json.Marshal(fields))
}

// answer is what a client reads.
type answer struct {
	ids    []uint32
	text   strings.Builder
	prompt int
}

func (a *answer) add(event gjson.Result) {
	if n := len(event.Get("prompt_token_ids").Array()) + len(event.Get("choices.0.prompt_token_ids").Array()); n > 0 {
		a.prompt = n
	}
	for _, id := range event.Get("choices.0.token_ids").Array() {
		a.ids = append(a.ids, uint32(id.Uint()))
	}
	for _, field := range [...]string{"text", "delta.content", "delta.reasoning", "message.content", "message.reasoning"} {
		a.text.WriteString(event.Get("choices.0." + field).Str)
	}
}

// Play plays a stream with its moves, and compares it with the engine's own answer to the same
// request, which it asks for afterwards: it must not warm anything. A failed move leaves the
// stream where it is.
func (p *Pair) Play(s Stream) []Moved {
	p.t.Helper()
	ctx, leave := context.WithCancel(p.t.Context())
	defer leave()
	resp := p.post(ctx, p.clients[s.At]+s.path(), s.body(p.Model, true))
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	var got answer
	results := make(chan Moved)
	var moves []Moved
	moving, done, enough := false, false, math.MaxInt
	for events := readEvents(ctx, lines); ; {
		if len(got.ids) >= enough {
			done = true
			break
		}
		if !moving && len(moves) < len(s.Moves) && len(got.ids) >= s.Moves[len(moves)] && !p.busy() {
			moving = true
			id, length := p.streamOf(s.At), got.prompt+len(got.ids)
			go func() { results <- p.move(s.At, id, length) }()
		}
		select {
		case m := <-results:
			if moves, moving = append(moves, m), false; s.After > 0 && len(moves) == len(s.Moves) {
				enough = len(got.ids) + s.After
			}
			continue
		case e, ok := <-events:
			if ok && e != "[DONE]" {
				got.add(gjson.Parse(e))
				continue
			}
			done = ok
		}
		break
	}
	leave()
	if moving {
		moves = append(moves, <-results)
	}
	s.Output = len(got.ids)
	want := p.ask(s)
	if !done || !slices.Equal(got.ids, want.ids) || !strings.HasPrefix(want.text.String(), got.text.String()) ||
		enough == math.MaxInt && got.text.String() != want.text.String() { // who leaves may lack the rest of a character
		at := 0
		for at < min(len(got.ids), len(want.ids)) && got.ids[at] == want.ids[at] {
			at++
		}
		p.t.Fatalf("%d tokens of a prompt of %d, ended %v, moves %+v: the client reads\n%v…\n%q\nwant\n%v…\n%q\n%s", len(got.ids), got.prompt, done, moves,
			got.ids[at:], got.text.String(), want.ids[at:], want.text.String(), &p.Log)
	}
	return moves
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

// ask returns the engine's own answer.
func (p *Pair) ask(s Stream) (a answer) {
	resp := p.post(p.t.Context(), p.Engines[s.At]+s.path(), s.body(p.Model, false))
	defer resp.Body.Close()
	a.add(gjson.ParseBytes(testkit.Must(io.ReadAll(resp.Body))))
	return a
}

func (p *Pair) post(ctx context.Context, url string, body []byte) *http.Response {
	p.t.Helper()
	req := testkit.Must(http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	testkit.NoError(p.t, err)
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		p.t.Fatalf("%s: %s: %s", url, resp.Status, text)
	}
	return resp
}

// streamOf returns the id of the one stream of a front end's clients.
func (p *Pair) streamOf(front int) (id string) {
	p.Front[front].EachStream(func(s *frontend.Stream) bool { id = s.Request().ID; return false })
	return id
}

// move moves a stream to the other replica.
func (p *Pair) move(front int, id string, length int) Moved {
	h, ok := p.Front[front].Holder(id)
	if !ok {
		return Moved{Length: length, Err: frontend.ErrNoStream}
	}
	from, to := 0, 1
	if h.Replica == replica(1) {
		from, to = 1, 0
	}
	result, err := p.Front[front].Migrate(context.Background(), frontend.Migration{Stream: id, From: h.Replica, FromAddress: p.peers[from], Epoch: h.Epoch, To: p.target(to), Cached: -1})
	return Moved{result, length, err}
}

// Sources is how many prompt tokens an engine got from where.
type Sources struct{ Computed, Cached, Fetched float64 }

// Sources reads an engine's counters.
func (p *Pair) Sources(engine int) Sources {
	return Sources{p.Counter(engine, "vllm:prompt_tokens_by_source_total", `source="local_compute"`), p.Counter(engine, "vllm:prompt_tokens_by_source_total", `source="local_cache_hit"`),
		p.Counter(engine, "vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`)}
}

// Sub returns what has been added since before.
func (s Sources) Sub(before Sources) Sources {
	return Sources{s.Computed - before.Computed, s.Cached - before.Cached, s.Fetched - before.Fetched}
}

// Counter returns the sum of an engine's series of a metric that have a label.
func (p *Pair) Counter(engine int, metric, label string) (sum float64) {
	resp, err := http.Get(p.Engines[engine] + "/metrics")
	testkit.NoError(p.t, err)
	defer resp.Body.Close()
	for line := range strings.Lines(string(testkit.Must(io.ReadAll(resp.Body)))) {
		var v float64
		if rest, found := strings.CutPrefix(line, metric+"{"); found && strings.Contains(rest, label) {
			fmt.Sscan(rest[strings.LastIndexByte(rest, ' ')+1:], &v)
			sum += v
		}
	}
	return sum
}
