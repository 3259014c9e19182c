package emulator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	wire "github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// servedEngine is a replica that serves its block table, and a session with it.
type servedEngine struct {
	*Engine
	rpc     wire.BlocksClient
	session string
	leave   func() // ends the session
	stop    func()
}

// serve runs a replica that serves its block table, until the end of the test.
func serve(t testing.TB, c Config) *servedEngine {
	t.Helper()
	c.Blocks = filepath.Join(t.TempDir(), "b")
	e, stop := start(t, c)
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.Blocks, blocktable.BlocksSocket),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	s := &servedEngine{Engine: e, rpc: wire.NewBlocksClient(conn)}
	s.session, s.leave = s.openSession(t)
	s.stop = sync.OnceFunc(func() {
		s.leave()
		conn.Close()
		stop()
	})
	t.Cleanup(s.stop)
	return s
}

// openSession opens a session.
func (s *servedEngine) openSession(t testing.TB) (name string, leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := s.rpc.Session(ctx, &wire.SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return first.Session, func() { cancel(); stream.Recv() }
}

// run sends a streaming request of a leg in the background. answer receives the answer when it is
// complete; cancel disconnects the client.
func (s *servedEngine) run(t testing.TB, leg, body string) (answer <-chan *httptest.ResponseRecorder, cancel func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r := post("/v1/completions", body).WithContext(ctx)
	r.Header.Set(legHeader, leg)
	out := make(chan *httptest.ResponseRecorder, 1)
	go func() { out <- serveRequest(s.Engine, r) }()
	return out, cancel
}

// table requests the block table until the leg has generated a token.
func (s *servedEngine) table(t testing.TB, leg string) (r *wire.TableReply) {
	t.Helper()
	testkit.WaitFor(t, "a token of leg "+leg, func() bool {
		var err error
		r, err = s.rpc.Table(t.Context(), &wire.TableRequest{Leg: leg})
		if c := status.Code(err); c != codes.OK && c != codes.NotFound && c != codes.FailedPrecondition {
			t.Fatal(err)
		}
		return err == nil
	})
	return r
}

// freeze freezes a leg and returns its table.
func (s *servedEngine) freeze(t testing.TB, leg string) *wire.TableReply {
	t.Helper()
	r, err := s.rpc.Freeze(t.Context(), &wire.TableRequest{Session: s.session, Leg: leg})
	check(t, err)
	return r
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitForStats waits until the counters meet a condition: the loop publishes them after it has
// answered.
func (s *servedEngine) waitForStats(t testing.TB, what string, ok func(batch.Stats) bool) {
	t.Helper()
	testkit.WaitForValue(t, what, func() batch.Stats {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.stats
	}, ok)
}

func empty(st batch.Stats) bool {
	return st.Running+st.Waiting+st.Frozen+st.UsedBlocks+st.Reserved == 0
}

const long = `{"prompt":[1,2,3,4,5,6,7,8],"max_tokens":4000,"ignore_eos":true,"stream":true}`

// A table is returned at once, and a freeze takes effect when the iteration is over: no caller
// waits longer, and the tokens of an iteration do not appear before its time has passed.
func TestCallsAndTheIteration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		r := post("/v1/completions", long)
		r.Header.Set(legHeader, "a")
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		go func() { defer close(returned); serveRequest(e, r.WithContext(ctx)) }()
		// A prefill of 8 tokens takes 10.8 ms, and every further token at least 11 ms.
		time.Sleep(10800*time.Microsecond + 15*time.Millisecond)
		q, ok := engineAdapter{e}.Leg("a")
		if !ok {
			t.Fatal("the leg is unknown")
		}
		do := func(when blocktable.RunPoint, f func(*batch.Scheduler)) time.Duration {
			begin := time.Now()
			if err := e.do(t.Context(), when, f); err != nil {
				t.Fatal(err)
			}
			return time.Since(begin)
		}
		var first, second batch.Table
		if took := do(blocktable.Immediately, func(s *batch.Scheduler) { first, _ = s.Table(q, 0) }); took != 0 {
			t.Errorf("the table took %v", took)
		}
		if first.Length != 10 || first.Computed != 9 {
			t.Errorf("within the third iteration: %+v", first)
		}
		took := do(blocktable.AtBoundary, func(s *batch.Scheduler) {
			if err := s.Freeze(q, 1); err != nil {
				t.Error(err)
			}
			second, _ = s.Table(q, 0)
		})
		if took <= 0 || took > 11*time.Millisecond || second.Length != 11 || second.Computed != 10 {
			t.Errorf("frozen after %v: %+v", took, second)
		}
		time.Sleep(time.Second)
		if took := do(blocktable.Immediately, func(s *batch.Scheduler) { s.Thaw(q) }); took != 0 {
			t.Errorf("the thaw took %v", took)
		}
		time.Sleep(12 * time.Millisecond)
		do(blocktable.Immediately, func(s *batch.Scheduler) { second, _ = s.Table(q, 0) })
		if second.Length != 12 {
			t.Errorf("one iteration after the thaw: %+v", second)
		}
		// A call whose context has ended is not served.
		gone, give := context.WithTimeout(t.Context(), time.Millisecond)
		defer give()
		if err := e.do(gone, blocktable.AtBoundary, func(*batch.Scheduler) { t.Error("a call runs after its caller has gone") }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(50 * time.Millisecond)
		cancel()
		<-returned
		if _, ok := (engineAdapter{e}).Leg("a"); ok {
			t.Error("the leg outlives its client")
		}
		stop()
		if err := e.do(t.Context(), blocktable.Immediately, func(*batch.Scheduler) {}); !errors.Is(err, errStopped) {
			t.Error(err)
		}
	})
}

// When a session ends, its reservations are freed and its frozen requests continue; those of other
// sessions remain.
func TestSessionEnd(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	other, leave := s.openSession(t)
	defer leave()
	answer, cancel := s.run(t, "a", long)
	s.table(t, "a")
	frozen := s.freeze(t, "a")
	for name, session := range map[string]string{"mine": s.session, "other": other} {
		check(t, second(s.rpc.Reserve(t.Context(), &wire.ReserveRequest{Session: session, Reservation: name, Tokens: 320})))
	}
	check(t, second(s.rpc.MarkFilled(t.Context(), &wire.MarkFilledRequest{Reservation: "mine", Ids: []uint32{1, 2}, Computed: 1})))
	s.waitForStats(t, "frozen", func(st batch.Stats) bool { return st.Frozen == 1 && st.Running == 0 && st.Reserved == 40 })
	s.leave()
	testkit.WaitFor(t, "the request to continue", func() bool { return s.table(t, "a").Length >= frozen.Length+5 })
	cancel()
	<-answer
	s.waitForStats(t, "after the session", func(st batch.Stats) bool { return st.Frozen == 0 && st.Reserved == 20 && st.UsedBlocks == 20 })
	for _, err := range []error{
		second(s.rpc.Reserve(t.Context(), &wire.ReserveRequest{Session: s.session, Reservation: "late", Tokens: 1})),
		second(s.rpc.MarkFilled(t.Context(), &wire.MarkFilledRequest{Reservation: "mine", From: 2})),
		second(s.rpc.Table(t.Context(), &wire.TableRequest{Leg: "a"})),
		second(s.rpc.Drop(t.Context(), &wire.LegRequest{Leg: "a"})),
	} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("after the session: %v", err)
		}
	}
	leave()
	s.waitForStats(t, "at the end", empty)
}

func second[T any](_ T, err error) error { return err }

// When a client disconnects, its request ends, frozen or not.
func TestFrozenClientGone(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	answer, cancel := s.run(t, "a", long)
	s.table(t, "a")
	s.freeze(t, "a")
	cancel()
	<-answer
	s.waitForStats(t, "the client has gone", empty)
	if _, err := s.rpc.Thaw(t.Context(), &wire.LegRequest{Leg: "a"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

// A dropped request ends without an end marker; if it has not begun to answer, it ends with an
// error.
func TestDrop(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	for name, body := range map[string]string{"stream": long, "whole": strings.Replace(long, `,"stream":true`, "", 1)} {
		w := &slowWriter{ResponseRecorder: httptest.NewRecorder(), begun: make(chan struct{}), gone: make(chan struct{})}
		close(w.gone)
		r := post("/v1/completions", body)
		r.Header.Set(legHeader, name)
		answered := make(chan struct{})
		go func() { defer close(answered); s.Handler().ServeHTTP(w, r) }()
		s.table(t, name)
		if name == "stream" {
			<-w.begun
		}
		check(t, second(s.rpc.Drop(t.Context(), &wire.LegRequest{Leg: name})))
		<-answered
		switch {
		case name == "whole" && w.Code != http.StatusServiceUnavailable:
			t.Errorf("whole: %d %s", w.Code, w.Body)
		case name == "stream" && (w.Code != http.StatusOK || strings.Contains(w.Body.String(), "[DONE]") || strings.Contains(w.Body.String(), "error")):
			t.Errorf("stream: %d %s", w.Code, w.Body)
		}
		s.waitForStats(t, name, empty)
	}
}

// A leg belongs to one request until the answer is complete.
func TestLegsAreUnique(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	answer, cancel := s.run(t, "a", long)
	s.table(t, "a")
	twice, _ := s.run(t, "a", long)
	if w := <-twice; w.Code != http.StatusConflict {
		t.Errorf("a second one: %d %s", w.Code, w.Body)
	}
	s.table(t, "a")
	cancel()
	<-answer
	again, _ := s.run(t, "a", `{"prompt":[1],"max_tokens":2}`)
	if w := <-again; w.Code != http.StatusOK {
		t.Errorf("after it has ended: %d %s", w.Code, w.Body)
	}
	endless, _ := s.run(t, strings.Repeat("x", blocktable.MaxName+1), long)
	if w := <-endless; w.Code != http.StatusBadRequest {
		t.Errorf("an endless name: %d", w.Code)
	}
}

// A reservation that cannot be adopted is rejected with a reason, and remains reserved.
func TestAdoptionRefused(t *testing.T) {
	s := serve(t, Config{Speed: 20})
	adopt := func(more string) *httptest.ResponseRecorder {
		return serveRequest(s.Engine, post("/v1/completions", `{"prompt":[],"max_tokens":3,"ignore_eos":true`+more+`}`))
	}
	const r = `,"kv_transfer_params":{"cascade_reservation":"r"}`
	expect := func(what string, w *httptest.ResponseRecorder, code int, words string) {
		t.Helper()
		if w.Code != code || !strings.Contains(w.Body.String(), words) {
			t.Errorf("%s: %d %s, want %d and %q", what, w.Code, w.Body, code, words)
		}
	}
	expect("unknown", adopt(r), 404, "no such reservation")
	check(t, second(s.rpc.Reserve(t.Context(), &wire.ReserveRequest{Session: s.session, Reservation: "r", Tokens: 64})))
	expect("unfilled", adopt(r), 409, "never filled")
	check(t, second(s.rpc.MarkFilled(t.Context(), &wire.MarkFilledRequest{Reservation: "r", Ids: []uint32{1, 2, 3}, Computed: 2})))
	expect("with a prompt", serveRequest(s.Engine, post("/v1/completions", `{"prompt":[1]`+r+`}`)), 400, "must be empty")
	expect("with messages", serveRequest(s.Engine, post("/v1/chat/completions", `{"messages":[{"role":"user"}]`+r+`}`)), 400, "must be empty")
	expect("with ids", serveRequest(s.Engine, post("/v1/chat/completions", `{"kv_transfer_params":{"cascade_reservation":"r","prompt_token_ids":[1]}}`)), 400, "must be empty")
	expect("too long", serveRequest(s.Engine, post("/v1/completions", `{"prompt":[],"max_tokens":5000`+r+`}`)), 400, "maximum context length")
	expect("a nameless one", adopt(`,"kv_transfer_params":{"cascade_reservation":""}`), 400, "1 to 256 bytes")
	s.waitForStats(t, "still reserved", func(st batch.Stats) bool { return st.Reserved == 4 })
	answer, cancel := s.run(t, "", `{"prompt":[],"max_tokens":4000,"ignore_eos":true`+r+`}`)
	s.waitForStats(t, "adopted", func(st batch.Stats) bool { return st.Running == 1 && st.Reserved == 0 })
	expect("adopted", adopt(r), 409, "has adopted")
	if _, err := s.rpc.Release(t.Context(), &wire.ReleaseRequest{Reservation: "r"}); err != nil {
		t.Error(err)
	}
	for _, err := range []error{
		second(s.rpc.MarkFilled(t.Context(), &wire.MarkFilledRequest{Reservation: "r", From: 3, Ids: []uint32{4}, Computed: 3})),
		second(s.rpc.Reserve(t.Context(), &wire.ReserveRequest{Session: s.session, Reservation: "r", Tokens: 64})),
	} {
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("of an adopted one: %v", err)
		}
	}
	cancel()
	<-answer
	s.waitForStats(t, "the adopted request's client has gone", empty)
	expect("over", adopt(r), 404, "no such reservation")

	plain, stop := start(t, Config{})
	defer stop()
	for w := serveRequest(plain, post("/v1/completions", `{"prompt":[]`+r+`}`)); ; w = serveRequest(plain, post("/v1/completions", `{"prompt":[]`+r+`}`)) {
		if w.Code != http.StatusServiceUnavailable { // the engine does not run yet
			expect("no table", w, 400, "serves no block table")
			break
		}
	}
}

// A reservation is adopted even if its last position, or its whole text, is not computed: the
// engine computes the rest.
func TestAdoptComputesTheRest(t *testing.T) {
	s := serve(t, Config{Speed: 100})
	const ids = "[11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30]"
	want := complete(t, s.Engine, `{"prompt":`+ids+`,"max_tokens":20,"ignore_eos":true,"return_token_ids":true}`).Choices[0].TokenIDs
	list := make([]uint32, 20)
	for i := range list {
		list[i] = uint32(11 + i)
	}
	check(t, second(s.rpc.Reserve(t.Context(), &wire.ReserveRequest{Session: s.session, Reservation: "r", Tokens: 10})))
	check(t, second(s.rpc.MarkFilled(t.Context(), &wire.MarkFilledRequest{Reservation: "r", Ids: list})))
	got := complete(t, s.Engine, `{"prompt":[],"max_tokens":20,"ignore_eos":true,"return_token_ids":true,"kv_transfer_params":{"cascade_reservation":"r"}}`)
	if fmt.Sprint(got.Choices[0].TokenIDs) != fmt.Sprint(want) || got.Usage.PromptTokens != 20 || got.Usage.CompletionTokens != 20 || got.Usage.Details.Cached != 0 {
		t.Errorf("%+v, want ids %v", got, want)
	}
	s.waitForStats(t, "at the end", empty)
}

// When the engine ends, calls fail and none blocks.
func TestTableEndsWithTheEngine(t *testing.T) {
	s := serve(t, Config{})
	answer, _ := s.run(t, "a", long)
	s.table(t, "a")
	s.freeze(t, "a")
	s.stop()
	if w := <-answer; !strings.Contains(w.Body.String(), `{"error":`) {
		t.Errorf("the frozen request: %s", w.Body)
	}
	if left, err := filepath.Glob(filepath.Join(s.cfg.Blocks, "*")); len(left) != 0 || err != nil {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// Seeding examines the bytes that may begin a character, and no others.
func TestSeed(t *testing.T) {
	v, err := vocabulary()
	if err != nil {
		t.Fatal(err)
	}
	for _, whole := range []string{"a b c", "x🌿y龍z", "🌿🌿", "龍", "ᚠ and 𝄞", "\x80\x80🌿\xf0\x9f", "é\xc3"} {
		ids, err := v.Encode(whole)
		if err != nil {
			t.Fatal(err)
		}
		show := func(tx *text, ids []model.Token, end bool) (out []byte) {
			for _, id := range ids {
				tx.add(id)
				out = tx.takeReady(out)
			}
			if end {
				out = tx.takeRest(out)
			}
			return out
		}
		want := show(newText(v, &request{}), ids, true)
		for cut := range ids {
			first, then := newText(v, &request{}), newText(v, &request{})
			got := show(first, ids[:cut], false)
			then.seed(tail(v, ids[:cut]))
			got = append(got, show(then, ids[cut:], true)...)
			if string(got) != string(want) {
				t.Errorf("%q cut at %d: %q, want %q", whole, cut, got, want)
			}
		}
	}
}

// Several sessions use everything at once, with clients that disconnect: nothing hangs, and when
// all have ended, nothing is held.
func TestNothingLeaks(t *testing.T) {
	s := serve(t, Config{Speed: 200, MaxBatch: 6, KVTokens: 1024, Context: 1024})
	var all sync.WaitGroup
	for worker := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 4))
			session, leave := s.openSession(t)
			type asked struct {
				answer <-chan *httptest.ResponseRecorder
				cancel func()
			}
			var requests []asked
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			leg := func() string { return fmt.Sprint("leg", rng.IntN(6)) }
			reservation := func() string { return fmt.Sprint(worker/2, "/", rng.IntN(4)) }
			for op := range 120 {
				switch rng.IntN(10) {
				case 0:
					a, c := s.run(t, leg(), fmt.Sprintf(`{"prompt":[%d,2,3],"max_tokens":%d,"ignore_eos":true,"stream":true}`, op, 1+rng.IntN(300)))
					requests = append(requests, asked{a, c})
				case 1:
					s.rpc.Reserve(ctx, &wire.ReserveRequest{Session: session, Reservation: reservation(), Tokens: uint64(rng.IntN(200))})
				case 2, 3:
					n := rng.IntN(64)
					s.rpc.MarkFilled(ctx, &wire.MarkFilledRequest{Reservation: reservation(), Ids: make([]uint32, n), Computed: uint64(rng.IntN(n + 1))})
				case 4:
					s.rpc.Release(ctx, &wire.ReleaseRequest{Reservation: reservation()})
				case 5:
					a, c := s.run(t, "", fmt.Sprintf(`{"prompt":[],"max_tokens":%d,"ignore_eos":true,"kv_transfer_params":{"cascade_reservation":%q}}`, 1+rng.IntN(200), reservation()))
					requests = append(requests, asked{a, c})
				case 6:
					hurried, stop := context.WithTimeout(ctx, time.Duration(rng.IntN(400))*time.Microsecond)
					s.rpc.Freeze(hurried, &wire.TableRequest{Session: session, Leg: leg()})
					stop()
				case 7:
					s.rpc.Thaw(ctx, &wire.LegRequest{Leg: leg()})
				case 8:
					s.rpc.Drop(ctx, &wire.LegRequest{Leg: leg()})
				case 9:
					if len(requests) > 0 {
						requests[rng.IntN(len(requests))].cancel()
					} else {
						leave()
						session, leave = s.openSession(t)
					}
				}
			}
			leave()
			for i, r := range requests {
				if i%2 == 0 {
					r.cancel()
				}
				<-r.answer
			}
			if ctx.Err() != nil {
				t.Error("a call hangs")
			}
		})
	}
	all.Wait()
	s.waitForStats(t, "when all have left", empty)
	testkit.WaitForValue(t, "the end of all legs and calls", func() int { // sessions end asynchronously
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.legs) + len(s.calls)
	}, func(left int) bool { return left == 0 })
}

// A prefix is pinned only for requests of the same model or adapter and the same salt, as the prefix cache
// finds it.
func TestPinPrefixRoots(t *testing.T) {
	s := serve(t, Config{Speed: 20, Adapters: []string{"lora"}})
	ids := make([]uint32, 40)
	prompt := strings.Repeat("7,", 39) + "7"
	for i := range ids {
		ids[i] = 7
	}
	roots := []struct{ model, salt, more string }{
		{"", "", ""},
		{"", "tenant", `,"cache_salt":"tenant"`},
		{"lora", "", `,"model":"lora"`},
		{"lora", "tenant", `,"model":"lora","cache_salt":"tenant"`},
	}
	for i, x := range roots {
		if w := serveRequest(s.Engine, post("/v1/completions", `{"prompt":[`+prompt+`],"max_tokens":1`+x.more+`}`)); w.Code != http.StatusOK {
			t.Fatal(w.Body)
		}
		for j, y := range roots {
			r, err := s.rpc.PinPrefix(t.Context(), &wire.PinPrefixRequest{Session: s.session, Reservation: "r", Model: y.model, CacheSalt: y.salt, Ids: ids})
			check(t, err)
			if want := uint64(32); (r.Cached == want) != (j <= i) {
				t.Errorf("after %+v, %d tokens are pinned for %+v", x, r.Cached, y)
			}
			check(t, second(s.rpc.Release(t.Context(), &wire.ReleaseRequest{Reservation: "r"})))
		}
	}
	if _, err := s.rpc.PinPrefix(t.Context(), &wire.PinPrefixRequest{Session: s.session, Reservation: "r", Model: "other", Ids: ids}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	s.waitForStats(t, "at the end", empty)
}
