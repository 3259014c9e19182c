package handofftest

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// fleet is two replicas: r0, to which the clients speak, and r1.
type fleet struct {
	t       *testing.T
	net     *network
	oracle  *oracle // of settings
	engines []*engine
	fronts  []*frontend.Server
	peers   []string // addresses of the front ends
	rescues atomic.Int64
}

const clients = "127.0.0.1:7000" // where r0 serves them

// settings change a fleet. All fields may be nil.
type settings struct {
	engine func(*emulator.Config) // of all engines
	front  func(*frontend.Config) // of both front ends
	oracle *oracle                // of these engines; nil means a new one
}

// oracle knows what an engine answers that was never asked for anything else. Fleets with engines
// of one configuration can share one, one after another.
type oracle struct {
	engine  func(*emulator.Config)
	answers map[string]streamAnswer // by path and body
}

// ask returns the answer, of an engine that runs until the test ends unless it is known already.
func (o *oracle) ask(t *testing.T, path, body string) streamAnswer {
	t.Helper()
	a, ok := o.answers[path+body]
	if !ok {
		alone := &fleet{t: t, net: new(network)}
		a = alone.ask(newEngine(t, alone.net, 0, o.engine).api, path, body)
		if o.answers == nil {
			o.answers = make(map[string]streamAnswer)
		}
		o.answers[path+body] = a
	}
	return a
}

// newFleet runs a fleet until the test ends.
func newFleet(t *testing.T, s settings) *fleet {
	t.Helper()
	f := &fleet{t: t, net: new(network), oracle: cmp.Or(s.oracle, &oracle{engine: s.engine})}
	for i := range 2 {
		e := newEngine(t, f.net, i, s.engine)
		f.engines, f.peers = append(f.engines, e), append(f.peers, fmt.Sprintf("127.0.0.1:%d", 7100+i))
		c := frontend.Config{
			Replica: emulatedReplica(i), Engine: "http://" + e.api, Edges: policies.BucketEdges(1<<14, 4), KVTokens: 16384,
			Listener: testkit.Must(f.net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 7000+i))), PeerListener: testkit.Must(f.net.Listen("tcp", f.peers[i])),
			Listen: f.net.Listen, Dial: f.net.Dial, Handoff: true, Rescuer: f, OnRescue: func(frontend.Rescue) { f.rescues.Add(1) },
			Logger: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo})).With("replica", emulatedReplica(i)),
		}
		if s.front != nil {
			s.front(&c)
		}
		front := testkit.Must(frontend.New(c))
		testkit.Run(t, front.Run)
		testkit.WaitFor(t, "the engine is ready", func() bool { return front.Status().EngineReady })
		f.fronts = append(f.fronts, front)
	}
	return f
}

func emulatedReplica(i int) policies.ReplicaID { return policies.ReplicaID(fmt.Sprint("r", i)) }

// Rescue implements frontend.Rescuer: the other replica.
func (f *fleet) Rescue(_ policies.Request, tried []policies.ReplicaID) (policies.Target, bool) {
	for i := range f.engines {
		if !slices.Contains(tried, emulatedReplica(i)) {
			return f.address(i), true
		}
	}
	return policies.Target{}, false
}

func (f *fleet) address(i int) policies.Target {
	return policies.Target{Replica: emulatedReplica(i), Address: f.peers[i]}
}

// streamAnswer is a client's stream.
type streamAnswer struct {
	ids    []gjson.Result
	text   string
	finish string
	usage  gjson.Result
	err    error
	pause  time.Duration // the longest between two events
}

// ask sends a request to an address and reads the stream.
func (f *fleet) ask(address, path, body string) (a streamAnswer) {
	client := f.net.client()
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://"+address+path, "application/json", strings.NewReader(body))
	if err != nil {
		return streamAnswer{err: err}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return streamAnswer{err: fmt.Errorf("status %d: %s", resp.StatusCode, text)}
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	last := time.Time{}
	var text strings.Builder
	defer func() { a.text = text.String() }()
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			return a
		}
		ev := gjson.Parse(data)
		if ev.Get("error").Exists() {
			a.err = errors.New(data)
			return a
		}
		if now := time.Now(); !last.IsZero() {
			a.pause, last = max(a.pause, now.Sub(last)), now
		} else {
			last = now
		}
		choice := ev.Get("choices.0")
		a.ids = append(a.ids, choice.Get("token_ids").Array()...)
		text.WriteString(choice.Get("text").Str)
		text.WriteString(choice.Get("delta.content").Str)
		if reason := choice.Get("finish_reason").Str; reason != "" {
			a.finish = reason
		}
		if u := ev.Get("usage"); u.IsObject() {
			a.usage = u
		}
	}
	a.err = errors.Join(errors.New("the stream was cut"), lines.Err())
	return a
}

// same compares a stream with an engine's own: every token, the text, the end and what was counted.
func (f *fleet) same(got, want streamAnswer) error {
	show := func(a streamAnswer) string {
		return fmt.Sprintf("%s %s/%s %q, %v, ids %v", a.finish, a.usage.Get("prompt_tokens"), a.usage.Get("completion_tokens"), a.text, a.err, a.ids)
	}
	if show(got) != show(want) {
		return fmt.Errorf("the stream is not that of one engine:\ngot  %s\nwant %s", show(got), show(want))
	}
	return nil
}

// stream is a stream of a client at r0.
type stream struct {
	*fleet
	got  chan streamAnswer
	want streamAnswer

	keepsKV        bool                // its moves are those of a prefill replica
	holder, target *engine             // of a row
	computed       map[*engine]float64 // prompt tokens, before it
	background     sync.WaitGroup      // what it does on other goroutines
}

// startStream starts a stream at r0 and waits for some tokens of it. Nothing else runs at r0.
func (f *fleet) startStream(path, body string, tokens int) *stream {
	f.t.Helper()
	s := &stream{fleet: f, got: make(chan streamAnswer, 1), want: f.oracle.ask(f.t, path, body)}
	go func() { s.got <- f.ask(clients, path, body) }()
	s.waitFor(tokens)
	return s
}

// waitFor waits until the front end has so many tokens of the stream.
func (s *stream) waitFor(tokens int) {
	s.t.Helper()
	testkit.WaitFor(s.t, "tokens of the stream", func() bool {
		enough := len(s.got) > 0
		s.fronts[0].EachStream(func(one *frontend.Stream) bool {
			enough = enough || one.Request().Output >= policies.Tokens(tokens)
			return !enough
		})
		return enough
	})
}

// waitForIdle waits until r0's front end has seen its engine with no request that waits: one that was
// just arriving when its metrics were read makes it ask for no handoff for a second.
func (s *stream) waitForIdle() {
	s.t.Helper()
	testkit.WaitFor(s.t, "an idle engine", func() bool { return !s.fronts[0].EngineLoad().Busy() })
}

// move migrates the stream to a replica. It is repeated while the stream's present leg has no token.
func (s *stream) move(to int) (moved frontend.MigrationResult, err error) {
	s.t.Helper()
	testkit.WaitFor(s.t, "the migration", func() bool {
		var id string
		s.fronts[0].EachStream(func(one *frontend.Stream) bool { id = one.Request().ID; return false })
		h, ok := s.fronts[0].Holder(id)
		if !ok {
			err = frontend.ErrNoStream
			return true
		}
		from := 0
		if h.Replica == emulatedReplica(1) {
			from = 1
		}
		moved, err = s.fronts[0].Migrate(s.t.Context(), frontend.Migration{
			Stream: id, From: h.Replica, FromAddress: s.peers[from], Epoch: h.Epoch, To: s.address(to), Cached: -1, KeepsKV: s.keepsKV,
		})
		if err != nil && moved.Epoch > 0 {
			s.fronts[from].AdvanceEpoch(id, moved.Epoch)
		}
		return !errors.Is(err, frontend.ErrStaleEpoch)
	})
	return moved, err
}

// end waits for the end of the stream and compares it with the uninterrupted one.
func (s *stream) end() streamAnswer {
	s.t.Helper()
	got := <-s.got
	if err := s.same(got, s.want); err != nil {
		s.t.Error(err)
	}
	return got
}
