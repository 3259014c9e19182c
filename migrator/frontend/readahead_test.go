package frontend

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// postUnread sends n requests over one HTTP/2 connection whose windows are 0, so that no answer can be
// written.
func (f *fleet) postUnread(path, body string, n int) {
	f.t.Helper()
	conn := testkit.Must(memory.dial(f.t.Context(), "tcp", f.url))
	f.t.Cleanup(func() { conn.Close() })
	frames := http2.NewFramer(conn, conn)
	go func() {
		for {
			if _, err := frames.ReadFrame(); err != nil {
				return
			}
		}
	}()
	testkit.Must(conn.Write([]byte(http2.ClientPreface)))
	testkit.NoError(f.t, frames.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for i := range n {
		block.Reset()
		for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", path}} {
			testkit.NoError(f.t, encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}))
		}
		id := uint32(2*i + 1)
		testkit.NoError(f.t, frames.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}))
		testkit.NoError(f.t, frames.WriteData(id, true, []byte(body)))
	}
}

// requireNoWork waits, and fails the test unless nothing of ended requests counts any more.
func (srv *testServer) requireNoWork(wait time.Duration) {
	srv.t.Helper()
	time.Sleep(wait)
	w := srv.admission.ledger.Work()
	if s := srv.Status(); s.Load != (policies.Load{Engine: s.Load.Engine}) || w.Requests != 0 || w.Demand != 0 || w.Waiting != 0 || len(srv.LocalLegs()) != 0 {
		srv.t.Errorf("an engine that has ended everything has %d legs, %+v, %+v", len(srv.LocalLegs()), s.Load, w)
	}
}

// answerWhole is an engine's answer that is no stream of events.
func answerWhole(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"choices":[],"pad":%q,"usage":{"prompt_tokens":9,"completion_tokens":90}}`, strings.Repeat(" ", 1<<19))
}

// TestAttackUnreadAnswers checks that clients that read nothing take nothing from others: when the engine
// has ended their answers, of whatever kind, they count no more, and others are admitted.
func TestAttackUnreadAnswers(t *testing.T) {
	whole := strings.Replace(busyRequest, `"stream":true`, `"logprobs":1`, 1)
	for name, attack := range map[string]func(*fleet){
		"HTTP/1":   func(f *fleet) { f.postSlowly("/v1/completions", busyRequest) },
		"HTTP/2":   func(f *fleet) { f.postUnread("/v1/completions", busyRequest, 1) },
		"whole":    func(f *fleet) { f.postSlowly("/v1/completions", whole) },
		"passed":   func(f *fleet) { f.postSlowly("/v1/embeddings", `{"input":"once upon a time"}`) },
		"n":        func(f *fleet) { f.postSlowly("/v1/completions", strings.Replace(busyRequest, `"max`, `"n":2,"max`, 1)) },
		"HTTP/2 ×": func(f *fleet) { f.postUnread("/v1/completions", busyRequest, 3) },
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 1, configured(busyEngine))
			srv, e := f.servers[0], f.engines[0]
			e.pass(answerWhole)
			if name == "whole" {
				e.set(nil, answerWhole)
			}
			for range 3 {
				attack(f)
			}
			time.Sleep(time.Second)
			srv.requireNoWork(time.Second)
			if n := srv.admission.ledger.Work().Output; n != 90 && name != "passed" && name != "n" {
				t.Errorf("answers of 90 tokens ended with %d", n)
			}
			e.set(nil, nil)
			for range 3 {
				if resp, body := srv.post("/v1/completions", busyRequest); resp.StatusCode != 200 || !strings.HasSuffix(body, "[DONE]\n\n") {
					t.Errorf("another client gets %s: %.200s", resp.Status, body)
				}
			}
			if held := srv.answers.Held(); held > 9<<20 {
				t.Errorf("the unread answers take %d bytes", held)
			}
		})
	}
}

// TestAttackUnreadPeerLegs has clients that read nothing of answers which a peer's engine gives: the peer is idle once
// that engine has ended them, and serves others.
func TestAttackUnreadPeerLegs(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		peer := f.servers[1]
		f.placers[0].sendTo(f.target(1))
		f.postUnread("/v1/completions", busyRequest, 3)
		for range 3 {
			f.postSlowly("/v1/completions", busyRequest)
		}
		time.Sleep(time.Second)
		if n := f.engines[1].calls.Load(); n == 0 {
			t.Fatal("the peer's engine has no request")
		}
		peer.requireNoWork(time.Second)
		if resp, body := peer.post("/v1/completions", busyRequest); resp.StatusCode != 200 || !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Errorf("another client gets %s: %.200s", resp.Status, body)
		}
	}, places, configured(busyEngine))
}

// TestAttackUnreadReports runs the same requests at two front ends: clients of one read nothing. What both
// report is alike, from which plans, their rollbacks, weights, outliers and sales follow: running requests,
// what they hold, by length, and the time between tokens, until the engine has ended them, and nothing after that.
func TestAttackUnreadReports(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		const pace, late = 20 * time.Millisecond, 30 // late is how many tokens are generated until an answer is read ahead
		f.setPace(pace)
		unread, read := f.servers[0], f.servers[1]
		for _, tokens := range []int{500, 1000, 2000} {
			body := fmt.Sprintf(`{"model":"m","prompt":"once upon a time","max_tokens":%d,"stream":true}`, tokens)
			f.postUnread("/v1/completions", body, 2)
			for range 2 {
				read.start(body)
			}
		}
		for second := range 60 {
			time.Sleep(time.Second)
			got, want := unread.Status(), read.Status()
			ending := slices.ContainsFunc([]int{500, 1000, 2000}, func(tokens int) bool {
				ends := time.Duration(tokens) * pace
				at := time.Duration(second+1) * time.Second
				return at >= ends && at <= ends+2*late*pace
			})
			if second < 5 || ending { // the connections of tests hold little: the engine has waited, too
				continue
			}
			if got.Load.Running != want.Load.Running || len(unread.LocalLegs()) != len(read.LocalLegs()) ||
				math.Abs(float64(got.Load.Held-want.Load.Held)) > float64(late*want.Load.Running) ||
				math.Abs(got.Load.Iteration-want.Load.Iteration) > 0.1*want.Load.Iteration {
				t.Fatalf("after %d s, %d legs and %+v are reported where clients read nothing, %d and %+v where they read",
					second+1, len(unread.LocalLegs()), got.Load, len(read.LocalLegs()), want.Load)
			}
			count := func(s Status) (batch policies.Batch, tokens float64) {
				for b := range s.Snapshot {
					batch = batch.Plus(s.Snapshot[b])
					tokens += s.Flow.Tokens[b]
				}
				return batch, tokens
			}
			batch, tokens := count(got)
			wantBatch, wantTokens := count(want)
			if batch.N != wantBatch.N || got.Flow.Seen != want.Flow.Seen || math.Abs(tokens-wantTokens) > 0.1*wantTokens {
				t.Fatalf("after %d s, %+v, %v tokens/s are reported where clients read nothing, %+v, %v where they read", second+1, batch, tokens, wantBatch, wantTokens)
			}
		}
		if s := unread.Status(); s.Load.Running > 0 || s.Load.Iteration > 0 || s.UnreadCut > 0 {
			t.Errorf("in the end %+v are reported, %d are cut", s.Load, s.UnreadCut)
		}
	})
}

// TestUnreadBeyondMemory checks unread answers for which there is no memory: they are counted
// as such, end in the counts when the engine has ended them by its own report, and are cut after
// WriteTimeout. Clients that read are served meanwhile.
func TestUnreadBeyondMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const memory, unread = 8 << 10, 3
		f := newFleet(t, 1, configured(busyEngine))
		srv, e := f.servers[0], f.engines[0]
		srv.answers = httpserver.NewBudget(memory)
		var atEngine atomic.Int64
		atEngine.Store(unread)
		e.pass(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				fmt.Fprintf(w, "vllm:num_requests_running 0\nvllm:num_requests_waiting %d\n", atEngine.Load())
			}
		})
		srv.restart(e, nil)
		f.postUnread("/v1/completions", busyRequest, unread-1)
		late := f.postSlowly("/v1/completions", busyRequest)
		time.Sleep(5 * time.Second)
		if s := srv.Status(); s.Unread != unread || s.Load.Running != unread || s.EngineHangs > 0 || srv.answers.Held() > memory {
			t.Errorf("%d answers are unread in %d bytes, %+v", s.Unread, srv.answers.Held(), s.Load)
		}
		if resp, body := srv.post("/v1/completions", strings.Replace(busyRequest, "90", "30", 1)); resp.StatusCode != 200 || !strings.HasSuffix(body, "[DONE]\n\n") {
			t.Errorf("a client that reads gets %s: %.200s", resp.Status, body)
		}
		if got, err := io.ReadAll(late.Body); err != nil || !strings.HasSuffix(string(got), "[DONE]\n\n") {
			t.Errorf("a client that reads late gets %v after %.200s", err, got)
		}
		atEngine.Store(1)
		time.Sleep(5 * time.Second)
		if s := srv.Status(); s.Unread != unread-1 || s.Load.Running != 1 {
			t.Errorf("of %d unread answers, %d are at an engine that has one", s.Unread, s.Load.Running)
		}
		atEngine.Store(0)
		srv.requireNoWork(5 * time.Second)
		time.Sleep(2 * srv.cfg.WriteTimeout)
		if s := srv.Status(); s.Unread != 0 || s.UnreadCut != unread-1 || srv.answers.Held() != 0 {
			t.Errorf("%d answers are unread, and %d were cut, want %d; %d bytes", s.Unread, s.UnreadCut, unread-1, srv.answers.Held())
		}
	})
}

// TestAttackTrickle checks that a client is cut that reads a little of its answer all the time, and that one
// is not that reads as much as it must, or everything that there is.
func TestAttackTrickle(t *testing.T) {
	const answer = `{"model":"m","prompt":"x","max_tokens":4000,"stream":true}`
	for name, test := range map[string]struct {
		perSecond int
		pace      time.Duration // of the engine
		cut       bool
	}{
		"too slow":    {maxPiece / 60 / 2, 0, true},
		"slow":        {maxPiece / 60 * 2, 0, false},
		"slow engine": {400, time.Second, false},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 1, configured(func(c *Config) { c.HealthInterval = time.Second }))
			srv := f.servers[0]
			f.setPace(test.pace)
			resp := f.postSlowly("/v1/completions", answer)
			for range 3 * 60 {
				time.Sleep(time.Second - test.pace)
				io.CopyN(io.Discard, resp.Body, int64(test.perSecond))
			}
			if got := srv.Status().UnreadCut == 1; got != test.cut {
				t.Errorf("cut: %v, want %v", got, test.cut)
			}
			resp.Body.Close()
		})
	}
}

// TestTimeBetweenTokens checks that the time between tokens is the engine's, and not that of a client which reads
// slowly, whether or not there is memory for what it has not read.
func TestTimeBetweenTokens(t *testing.T) {
	for name, memory := range map[string]int64{"memory": 1 << 20, "no memory": 2 << 10} {
		runInBubble(t, name, func(t *testing.T) {
			const pace = 20 * time.Millisecond
			f := newFleet(t, 1)
			f.setPace(pace)
			srv := f.servers[0]
			srv.answers = httpserver.NewBudget(memory)
			resp := f.postSlowly("/v1/completions", `{"model":"m","prompt":"x","max_tokens":3000,"stream":true}`)
			for i := range 40 {
				if got := srv.tracker.Iteration(); i > 5 && got > 0 && math.Abs(got-pace.Seconds()) > 0.5*pace.Seconds() {
					t.Fatalf("tokens come every %.3f s, want %v", got, pace)
				}
				io.ReadFull(resp.Body, make([]byte, 300)) // an event
				time.Sleep(time.Second)
			}
			resp.Body.Close()
		})
	}
}

// TestReadAheadKeepsAnswer checks that an answer which was read ahead now and then is the engine's, event by event.
func TestReadAheadKeepsAnswer(t *testing.T) {
	for _, test := range []struct{ memory, tokensPerEvent int64 }{{1 << 20, 1}, {2 << 10, 1}, {1 << 20, 500}, {2 << 10, 500}} {
		runInBubble(t, fmt.Sprint(test), func(t *testing.T) {
			f := newFleet(t, 1)
			f.answers = httpserver.NewBudget(test.memory)
			f.engines[0].tokensPerEvent.Store(test.tokensPerEvent)
			body := fmt.Sprintf(`{"model":"m","prompt":"x","max_tokens":%d,"stream":true}`, 400*min(test.tokensPerEvent, 20))
			want := f.directAnswer("/v1/completions", body)
			f.setPace(5 * time.Millisecond / time.Duration(test.tokensPerEvent))
			resp := f.postSlowly("/v1/completions", body)
			var got []byte
			for i := 0; ; i++ {
				b := make([]byte, 1+i%4000)
				n, err := io.ReadFull(resp.Body, b)
				if got = append(got, b[:n]...); err != nil {
					break
				}
				if i%100 == 50 {
					time.Sleep(time.Second)
				}
			}
			if diff := firstDifference(withoutIDs(string(got)), withoutIDs(want)); diff != "" {
				t.Error(diff)
			}
			if srv := f.servers[0]; srv.Status().Flow.Seen != 1 {
				t.Errorf("%d requests were seen", srv.Status().Flow.Seen)
			}
		})
	}
}

// TestReadAheadLeavesLastEvent checks that the event which a reader has got stays what it is while the next ones are
// read ahead.
func TestReadAheadLeavesLastEvent(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		var events []string
		for n := range 20 {
			events = append(events, fmt.Sprintf(`data: {"choices":[{"index":0,"text":"%d","token_ids":[%d]}]}`+"\n\n", n, n))
		}
		events = append(events, "data: [DONE]\n\n")
		_, c := newCall(t.Context())
		lr := &legRequest{header: http.Header{}, frontEnd: "r0"}
		local := f.registerLeg(lr, c, testkit.Must(f.admission.admit(lr)))
		leg := readLeg(io.NopCloser(strings.NewReader(strings.Join(events, ""))), c, local, time.Hour)
		defer leg.close()
		first := testkit.Must(leg.next())
		var readers sync.WaitGroup
		for range awayChecks {
			leg.ahead.check(&readers)
		}
		readers.Wait()
		if got := string(first.Raw()); got != events[0] || len(f.LocalLegs()) != 0 {
			t.Errorf("the event became %s", got)
		}
		for _, want := range events[1:] {
			if c, err := leg.next(); err != nil || string(c.Raw()) != want {
				t.Errorf("got %v, want %s", err, want)
			}
		}
	})
}
