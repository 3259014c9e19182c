package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// memLeg is a Leg in memory with the fake engine's events.
type memLeg struct {
	mu     sync.Mutex
	events []string
	at     int
	gate   chan struct{} // if not nil, each event needs one value
	err    error         // after the events
	pace   time.Duration // before each event
	closed chan struct{}
	once   sync.Once
}

var errClosed = errors.New("the leg is closed")

func newMemLeg(gate chan struct{}, err error, events ...string) *memLeg {
	return &memLeg{events: events, gate: gate, err: err, closed: make(chan struct{})}
}

func (l *memLeg) Next() (*openai.Chunk, error) {
	if l.gate != nil {
		select {
		case <-l.gate:
		case <-l.closed:
			return nil, errClosed
		}
	}
	select {
	case <-l.closed:
		return nil, errClosed
	default:
	}
	if l.pace > 0 {
		time.Sleep(l.pace)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == len(l.events) {
		return nil, l.err
	}
	ev, err := openai.NewReader(strings.NewReader(l.events[l.at])).Next()
	if err != nil {
		return nil, err
	}
	l.at++
	c := new(openai.Chunk)
	return c, c.Parse(ev)
}

func (l *memLeg) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

var _ Leg = (*memLeg)(nil)

// generation returns the events of an engine that continues ids to the given
// length: id is its id of the answer, prompt the length of its prompt.
func generation(id string, ids []uint32, prompt, until int) []string {
	var out []string
	head := fmt.Sprintf(`data: {"id":%q,"object":"text_completion","created":%d,"model":%q`, id, 1000+len(id), "model of "+id)
	v := detokenizer{}
	for n := 0; len(ids) < until; n++ {
		next := nextToken(ids)
		prompts := "null"
		if n == 0 {
			prompts = formatIDs(ids[:prompt], true)
		}
		ids = append(ids[:len(ids):len(ids)], next)
		finish := "null"
		if len(ids) == until {
			finish = `"length"`
		}
		out = append(out, fmt.Sprintf(`%s,"choices":[{"index":0,"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":[%d]}]}`+"\n\n",
			head, quote(v.add(next)), finish, prompts, next))
	}
	out = append(out, fmt.Sprintf(`%s,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d},"system_fingerprint":"of %s"}`+"\n\n", head, prompt, until, until-prompt, id))
	return append(out, "data: [DONE]\n\n")
}

var prompt = []uint32{11, 12, 13, 14, 15}

// streamHarness is a stream with its pump running, without any connection.
type streamHarness struct {
	*Stream
	out  *memoryWriter
	done chan error
}

// memoryWriter writes into memory what an eventWriter would send.
type memoryWriter struct {
	eventWriter
	rec *flushRecorder
}

type flushRecorder struct {
	recorder
	mu sync.Mutex
}

func (r *flushRecorder) FlushError() error { return nil }
func (r *flushRecorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recorder.Write(b)
}
func (r *flushRecorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.String()
}

// newStreamHarness starts a stream of a client that asked for ids and usage.
func newStreamHarness(leg Leg) *streamHarness {
	rec := &flushRecorder{recorder: recorder{header: http.Header{}}}
	out := &memoryWriter{eventWriter{w: rec, control: http.NewResponseController(rec), header: http.Header{}}, rec}
	f := &Server{cfg: Config{Replica: "r0"}}
	ctx, cancel := context.WithCancel(context.Background())
	r := &streamHarness{f.newStream(ctx, session.Config{}, out, cancel), out, make(chan error, 1)}
	go func() {
		c, err := leg.Next()
		if err != nil {
			r.done <- err
			return
		}
		r.done <- r.pump(opened(leg, c))
	}()
	return r
}

// opened is the event with which a stream begins.
func opened(leg Leg, first *openai.Chunk) session.Event {
	return session.Event{Kind: session.LegOpened, Leg: leg, Chunk: first, Replica: "r0"}
}

// migratedAnswer returns what a client reads of a stream that began with id "a"
// and migrated at least once: the answer without migrations, but with the last
// engine's fingerprint.
func migratedAnswer(until int, last string) string {
	return strings.Replace(strings.Join(generation("a", prompt, len(prompt), until), ""), `"of a"`, `"of `+last+`"`, 1)
}

// freezeStream claims a stream where it is and waits until it is frozen; the
// migration fails when ctx ends.
func freezeStream(ctx context.Context, s *Stream) (*migration, error) {
	h := s.currentHolder()
	c, err := s.claim(Migration{From: h.Replica, Epoch: h.Epoch})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { c.end(context.Cause(ctx)) })
	s.step(session.Event{Kind: session.FreezeRequested, Migration: c.number}, nil)
	if err := c.awaitFreeze(context.Background()); err != nil {
		return nil, err
	}
	return c, nil
}

// spliceLeg makes a frozen stream go on with leg, as Migrate does.
func spliceLeg(c *migration, leg Leg) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-c.over
		if _, err := c.end(nil); err != nil {
			leg.Close()
		}
	}()
	first, err := leg.Next()
	if err == nil {
		first, err = readToFirstToken(leg, first, 0)
	}
	if err != nil {
		c.end(err)
	} else {
		c.splice(leg, first, "r1", -1)
	}
	<-done
	_, err = c.end(nil)
	return err
}

// freezeWhileFeeding freezes a stream while its leg brings tokens until the text
// is aligned.
func freezeWhileFeeding(t *testing.T, s *Stream, gate chan<- struct{}) *migration {
	t.Helper()
	type result struct {
		*migration
		error
	}
	waitFor(t, "output", func() bool { return s.Request().Output > 0 })
	done := make(chan result, 1)
	go func() {
		c, err := freezeStream(t.Context(), s)
		done <- result{c, err}
	}()
	// The leg goes on when the freeze has been requested, else a slow machine may
	// use up all its tokens before; and no further than the freeze can need,
	// because of two tokens in a row one ends a character.
	for asked := false; !asked; {
		s.mu.Lock()
		state := s.machine.State()
		asked = state == session.Freezing || state == session.Frozen || len(done) > 0 // or refused
		s.mu.Unlock()
		runtime.Gosched()
	}
	feed := gate
	for fed := 0; ; {
		select {
		case r := <-done:
			if r.error != nil {
				t.Fatal(r.error)
			}
			return r.migration
		case feed <- struct{}{}:
			if fed++; fed == 3 {
				feed = nil
			}
		}
	}
}

func (r *streamHarness) requireText(t *testing.T, want string, wantErr bool) {
	t.Helper()
	if err := <-r.done; (err != nil) != wantErr {
		t.Errorf("the stream ended with %v", err)
	}
	if d := firstDifference(r.out.rec.text(), want); d != "" {
		t.Error(d)
	}
}

// firstDifference describes the first event in which a stream differs from the
// wanted one; it returns "" for none.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n\n"), strings.Split(want, "\n\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			return fmt.Sprintf("event %d is missing: %s", i, w[i])
		case i >= len(w):
			return fmt.Sprintf("event %d is one too many: %s", i, g[i])
		case g[i] != w[i]:
			return fmt.Sprintf("event %d is\n%s\nwant\n%s", i, g[i], w[i])
		}
	}
	return ""
}

func TestSpliceAtEveryToken(t *testing.T) {
	const until = 30
	a := generation("a", prompt, len(prompt), until)
	for n := 1; n < until-len(prompt)-6; n++ {
		gate := make(chan struct{})
		r := newStreamHarness(newMemLeg(gate, io.EOF, a...))
		for range n {
			gate <- struct{}{}
		}
		c := freezeWhileFeeding(t, r.Stream, gate)
		if len(c.ids) < len(prompt)+n-1 || c.prompt != len(prompt) {
			t.Fatalf("frozen after %d tokens with %d ids", n, len(c.ids))
		}
		select {
		case gate <- struct{}{}: // what the present leg generates now is held back
		case <-r.Stream.machine.Leg().(*memLeg).closed:
		}
		if last := c.ids[len(c.ids)-1]; last%7 == 0 {
			t.Fatalf("frozen inside a character, after %d", last)
		}
		b := newMemLeg(nil, io.EOF, generation("bb", c.ids, len(c.ids), until)...)
		if err := spliceLeg(c, b); err != nil {
			t.Fatalf("frozen at %d ids: %v", len(c.ids), err)
		}
		r.requireText(t, migratedAnswer(until, "bb"), false)
		if r.Splices() != 1 {
			t.Errorf("%d hops", r.Splices())
		}
	}
}

func TestChainOfSplices(t *testing.T) {
	const until = 60
	gate := make(chan struct{}, until)
	r := newStreamHarness(newMemLeg(gate, io.EOF, generation("a", prompt, len(prompt), until)...))
	gate <- struct{}{}
	waitFor(t, "the input to be counted", func() bool { return r.Request().Input > 0 })
	name := ""
	for hop := range 6 {
		c := freezeWhileFeeding(t, r.Stream, gate)
		name = fmt.Sprint("leg", hop)
		next := make(chan struct{}, until)
		next <- struct{}{}
		if err := spliceLeg(c, newMemLeg(next, io.EOF, generation(name, c.ids, len(c.ids), until)...)); err != nil {
			t.Fatal(err)
		}
		gate = next
	}
	close(gate)
	r.requireText(t, migratedAnswer(until, name), false)
	if r.Splices() != 6 {
		t.Errorf("%d hops", r.Splices())
	}
}

// TestMigrationEnds covers every end of a frozen migration but a splice.
func TestMigrationEnds(t *testing.T) {
	const until = 20
	a := generation("a", prompt, len(prompt), until)
	whole := strings.Join(a, "")
	begin := func(events []string, last error) (*streamHarness, chan struct{}, *migration) {
		gate := make(chan struct{})
		r := newStreamHarness(newMemLeg(gate, last, events...))
		gate <- struct{}{}
		gate <- struct{}{}
		return r, gate, freezeWhileFeeding(t, r.Stream, gate)
	}
	t.Run("abort", func(t *testing.T) {
		r, gate, c := begin(a, io.EOF)
		if _, err := freezeStream(t.Context(), r.Stream); err != ErrStaleEpoch {
			t.Errorf("a second cut: %v", err)
		}
		gate <- struct{}{}
		gate <- struct{}{}
		before := r.out.rec.text()
		c.end(session.ErrHeld)
		c.end(session.ErrHeld)
		gate <- struct{}{} // held chunks are written with it
		waitFor(t, "three more events", func() bool { return strings.Count(r.out.rec.text()[len(before):], "data: ") >= 3 })
		leg := newMemLeg(nil, io.EOF)
		if err := spliceLeg(c, leg); err != session.ErrHeld {
			t.Errorf("splice after abort: %v", err)
		}
		<-leg.closed
		close(gate)
		r.requireText(t, whole, false)
	})
	t.Run("its context", func(t *testing.T) {
		gate := make(chan struct{}, 99)
		r := newStreamHarness(newMemLeg(gate, io.EOF, a...))
		gate <- struct{}{}
		waitFor(t, "the input to be counted", func() bool { return r.Request().Input > 0 })
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() {
			c, err := freezeStream(ctx, r.Stream)
			if err == nil {
				err = spliceLeg(c, newMemLeg(make(chan struct{}), io.EOF)) // never a token
			}
			got <- err
		}()
		gate <- struct{}{}
		gate <- struct{}{}
		cancel()
		if err := <-got; err != session.ErrHeld && err != context.Canceled {
			t.Error(err)
		}
		close(gate)
		r.requireText(t, whole, false)
	})
	t.Run("the new leg fails", func(t *testing.T) {
		for _, bad := range [][]string{nil, {"data: [DONE]\n\n"}, {"data: {\"error\":{}}\n\n"}, {"data: x\n\n"}} {
			r, gate, c := begin(a, io.EOF)
			gate <- struct{}{}
			leg := newMemLeg(nil, errors.New("no such engine"), bad...)
			if err := spliceLeg(c, leg); err == nil {
				t.Error("a bad leg is spliced")
			}
			<-leg.closed
			close(gate)
			r.requireText(t, whole, false)
		}
	})
	t.Run("the stream ends first", func(t *testing.T) {
		r, gate, c := begin(a, io.EOF)
		leg := newMemLeg(make(chan struct{}), nil)
		spliced := make(chan error)
		go func() { spliced <- spliceLeg(c, leg) }()
		close(gate)
		if err := <-spliced; err != ErrNoStream {
			t.Errorf("splice: %v", err)
		}
		<-leg.closed
		r.requireText(t, whole, false)
		if _, err := freezeStream(t.Context(), r.Stream); err != ErrNoStream {
			t.Errorf("a cut after the end: %v", err)
		}
	})
	t.Run("the old leg dies, the new one lives", func(t *testing.T) {
		r, gate, c := begin(a[:len(a)-4], errors.New("engine gone"))
		close(gate)
		b := make(chan struct{})
		spliced := make(chan error)
		go func() { spliced <- spliceLeg(c, newMemLeg(b, io.EOF, generation("bb", c.ids, len(c.ids), until)...)) }()
		close(b)
		if err := <-spliced; err != nil {
			t.Error(err)
		}
		r.requireText(t, migratedAnswer(until, "bb"), false)
	})
	t.Run("both legs die", func(t *testing.T) {
		r, gate, c := begin(a[:len(a)-4], errors.New("engine gone"))
		close(gate)
		if err := spliceLeg(c, newMemLeg(nil, errors.New("gone too"))); err == nil {
			t.Error("spliced")
		}
		r.requireText(t, strings.Join(a[:len(a)-4], "")+string(engineLostProblem(errors.New("engine gone")).Event()), true)
	})
	t.Run("too much is held", func(t *testing.T) {
		long := append(append([]string{}, a[:5]...), strings.Replace(a[5], `"text":"`, `"text":"`+strings.Repeat("x", session.MaxHeld), 1))
		r, gate, c := begin(append(long, a[6:]...), io.EOF)
		close(gate)
		if err := spliceLeg(c, newMemLeg(make(chan struct{}), nil)); err != session.ErrHeld {
			t.Errorf("splice: %v", err)
		}
		if err := <-r.done; err != nil || !strings.HasSuffix(r.out.rec.text(), "[DONE]\n\n") {
			t.Error(err)
		}
	})
	t.Run("unknown ids", func(t *testing.T) {
		gate := make(chan struct{})
		r := newStreamHarness(newMemLeg(gate, io.EOF, `data: {"choices":[{"text":"a"}]}`+"\n\n", "data: [DONE]\n\n"))
		gate <- struct{}{}
		waitFor(t, "hidden tokens", func() bool { return r.Request().Features.Has(policies.HiddenTokens) })
		if _, err := freezeStream(t.Context(), r.Stream); err == nil || err == ErrStaleEpoch || err == ErrNoStream {
			t.Errorf("a cut: %v", err)
		}
		close(gate)
		<-r.done
	})
}

// TestRandomMigrations lets two goroutines freeze, splice and abort one stream
// while its legs run: whatever happens, the client reads the same tokens.
func TestRandomMigrations(t *testing.T) {
	t.Parallel()
	const until = 300
	hops := 0
	paced := func(name string, ids []uint32, prompt int) *memLeg {
		l := newMemLeg(nil, io.EOF, generation(name, ids, prompt, until)...)
		l.pace = 10 * time.Microsecond
		return l
	}
	for seed := range uint64(15) {
		r := newStreamHarness(paced("a", prompt, len(prompt)))
		var wg sync.WaitGroup
		for mover := range uint64(2) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(seed, mover))
				for {
					time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(2000))*time.Microsecond)
					c, err := freezeStream(ctx, r.Stream)
					if err == ErrNoStream {
						cancel()
						return
					}
					if err == nil {
						switch rng.IntN(4) {
						case 0:
							c.end(session.ErrHeld)
						case 1:
							spliceLeg(c, newMemLeg(nil, errors.New("refused")))
						default:
							spliceLeg(c, paced("b", c.ids, len(c.ids)))
						}
					}
					cancel()
				}
			})
		}
		if err := <-r.done; err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		wg.Wait()
		want := migratedAnswer(until, "a")
		if r.Splices() > 0 {
			want = migratedAnswer(until, "b")
		}
		hops += r.Splices()
		if d := firstDifference(r.out.rec.text(), want); d != "" {
			t.Fatalf("seed %d, %d hops: %s", seed, r.Splices(), d)
		}
	}
	if hops < 60 {
		t.Errorf("only %d migrations happened", hops)
	}
}

func newTestStream(ctx context.Context, out clientWriter, cancel context.CancelFunc) *Stream {
	f := &Server{cfg: Config{Replica: "r0"}}
	return f.newStream(ctx, session.Config{}, out, cancel)
}

// TestRequestEnds checks that the end of a client's request, or of the server,
// reaches the leg that is the present one by then, and ends a migration and all
// waits for it.
func TestRequestEnds(t *testing.T) {
	const until = 20
	first := generation("a", prompt, len(prompt), until)
	begin := func(leg *memLeg) (*streamHarness, context.CancelCauseFunc) {
		rec := &flushRecorder{recorder: recorder{header: http.Header{}}}
		out := &memoryWriter{eventWriter{w: rec, control: http.NewResponseController(rec), header: http.Header{}}, rec}
		ctx, cancel := context.WithCancelCause(context.Background())
		r := &streamHarness{newTestStream(ctx, out, func() { cancel(nil) }), out, make(chan error, 1)}
		go func() {
			c, _ := leg.Next()
			r.done <- r.pump(opened(leg, c))
		}()
		return r, cancel
	}
	t.Run("after a splice", func(t *testing.T) {
		gate := make(chan struct{})
		old := newMemLeg(gate, io.EOF, first...)
		r, cancel := begin(old)
		gate <- struct{}{}
		c := freezeWhileFeeding(t, r.Stream, gate)
		next := make(chan struct{}, 1)
		next <- struct{}{}
		leg := newMemLeg(next, io.EOF, generation("bb", c.ids, len(c.ids), until)...)
		if err := spliceLeg(c, leg); err != nil {
			t.Fatal(err)
		}
		cancel(errStopping)
		<-leg.closed
		if err := <-r.done; err != errStopping {
			t.Errorf("the stream ends with %v", err)
		}
		if !strings.Contains(r.out.rec.text(), errStopping.Error()) {
			t.Error("the client got no error event")
		}
	})
	t.Run("while cut, without its leg", func(t *testing.T) {
		gate := make(chan struct{})
		r, cancel := begin(newMemLeg(gate, errors.New("engine gone"), first[:len(first)-4]...))
		gate <- struct{}{}
		c := freezeWhileFeeding(t, r.Stream, gate)
		close(gate) // the leg ends; the pump waits for the migration
		leg := newMemLeg(make(chan struct{}), nil)
		spliced := make(chan error)
		go func() { spliced <- spliceLeg(c, leg) }()
		cancel(nil)
		<-leg.closed
		if err := <-spliced; err != ErrNoStream {
			t.Errorf("splice: %v", err)
		}
		if err := <-r.done; err != nil {
			t.Errorf("the stream ends with %v", err)
		}
	})
	t.Run("before the splice", func(t *testing.T) {
		gate := make(chan struct{})
		r, cancel := begin(newMemLeg(gate, io.EOF, first...))
		gate <- struct{}{}
		c := freezeWhileFeeding(t, r.Stream, gate)
		cancel(nil)
		leg := newMemLeg(nil, io.EOF, generation("bb", c.ids, len(c.ids), until)...)
		if err := spliceLeg(c, leg); err != ErrNoStream {
			t.Errorf("splice: %v", err)
		}
		<-leg.closed
		if _, err := freezeStream(t.Context(), r.Stream); err != ErrNoStream {
			t.Errorf("another cut: %v", err)
		}
		<-r.done
	})
}
