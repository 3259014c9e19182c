package handofftest

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// completion returns a request with a prompt of so many ids.
func completion(prompt, output int) string {
	ids := make([]string, prompt)
	for i := range ids {
		ids[i] = strconv.Itoa(100 + i*7919%20000)
	}
	return fmt.Sprintf(`{"model":"m","prompt":[%s],"max_tokens":%d,"ignore_eos":true,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`, strings.Join(ids, ","), output)
}

// chatRequest returns a chat request.
func chatRequest(output int) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"Speak up, please."}],"max_tokens":%d,"ignore_eos":true,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}}`, output)
}

// TestHandoffs moves streams back and forth between healthy engines, at every position within a
// block: each move is a handoff, and no engine computes a token of a prompt that it fetched.
func TestHandoffs(t *testing.T) {
	for name, request := range map[string]struct{ path, body string }{
		"completions":       {"/v1/completions", completion(90, 3000)},
		"a long completion": {"/v1/completions", completion(3000, 3000)},
		"chat":              {"/v1/chat/completions", chatRequest(3000)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, settings{})
				s := f.startStream(request.path, request.body, 1)
				for hop := range 33 { // 7 and a block's size have no common factor
					s.waitFor(2 + 7*hop)
					s.waitForIdle()
					if moved, err := s.move(1 - hop%2); err != nil || !moved.Handoff {
						t.Errorf("hop %d: %+v, %v", hop, moved, err)
					}
				}
				s.end()
				// Only handoff legs compute: the ids after their last full block.
				if n := f.engines[1].metric("vllm:prompt_tokens_by_source_total", "local_compute"); n > 40*blockTokens {
					t.Errorf("r1 has computed %v tokens", n)
				}
			})
		})
	}
}

// way is what became of a move.
type way string

const (
	handedOver way = "handed over" // the target's engine was to fetch the KV
	reprompted way = "reprompted"
	stayed     way = "stayed"
)

// replacing returns a change of an answer.
func replacing(old, text string) func(string) string {
	return func(s string) string { return strings.Replace(s, old, text, 1) }
}

// row is one failure.
type row struct {
	name     string
	settings settings
	prompt   int  // ids; 0 means 200
	long     bool // the stream must last for longer than 20 s
	before   func(s *stream)
	want     way
	lost     bool          // the holder is, so that the target has to compute the KV
	stall    time.Duration // at most; 0 means 100 ms
	after    func(s *stream)
}

// failures is the table of failures; see TestFailures.
func failures() []row {
	patient := func(c *frontend.Config) { c.MigrationTimeout = 2 * time.Minute }
	faults := func(f emulator.Faults) settings {
		return settings{engine: func(c *emulator.Config) { c.Faults = f }}
	}
	return []row{{
		name: "nothing is wrong", want: handedOver,
		after: func(s *stream) { s.requireComputed(s.target, 0) },
	}, {
		name: "a long prompt", prompt: 3000, want: handedOver,
		after: func(s *stream) { s.requireComputed(s.target, 0) },
	}, {
		name: "a fetch that fails after five seconds", long: true, want: reprompted, stall: 6 * time.Second,
		before: func(s *stream) {
			s.target.breakFetch = func() error { time.Sleep(5 * time.Second); return errors.New("no answer") }
		},
	}, {
		name: "a fetch that fails at once", want: handedOver, // vLLM does not say that it has computed all
		before: func(s *stream) { s.target.breakFetch = func() error { return errors.New("refused") } },
		after:  func(s *stream) { s.requireComputed(s.target, 200) },
	}, {
		name: "unknown offer", want: handedOver,
		before: func(s *stream) { s.holder.answer = replacing(`"cascade_handle":"`, `"cascade_handle":"x`) },
		after:  func(s *stream) { s.requireComputed(s.target, 200) },
	}, {
		name: "holder killed after the handoff", lost: true, want: reprompted, stall: time.Second,
		before: func(s *stream) { s.target.fetching = func(*http.Request) { s.holder.kill() } },
		after:  func(s *stream) { s.holder.start() },
	}, {
		name: "holder frozen after the handoff", lost: true, long: true, want: reprompted, stall: 6 * time.Second,
		before: func(s *stream) { s.target.fetching = func(*http.Request) { s.holder.freeze() } },
		after:  func(s *stream) { s.holder.thaw() },
	}, {
		name: "target fetches after the deadline", settings: settings{front: patient}, long: true, want: reprompted, stall: 16 * time.Second,
		before: func(s *stream) { s.target.fetching = func(*http.Request) { time.Sleep(20 * time.Second) } },
	}, {
		name: "target fetches after the lease, blocks reused", settings: settings{front: patient}, long: true, want: reprompted, stall: 16 * time.Second,
		before: func(s *stream) {
			s.target.fetching = func(*http.Request) {
				s.background.Add(1)
				defer s.background.Done()
				time.Sleep(lease + time.Second)
			}
		},
		after: (*stream).awaitLateFetch,
	}, {
		name: "target hangs until the lease is over, blocks reused", settings: settings{front: patient}, long: true, want: stayed,
		before: func(s *stream) {
			s.target.fetching = func(*http.Request) {
				s.target.fetching = nil
				s.target.Hang()
				s.background.Go(func() {
					time.Sleep(lease + 10*time.Second)
					s.target.Resume()
				})
			}
		},
		after: (*stream).awaitLateFetch,
	}, {
		name: "holder hangs, its health is good", want: reprompted, stall: time.Second,
		before: func(s *stream) { s.holder.Hang() },
		after:  func(s *stream) { s.holder.Resume() },
	}, {
		name: "target hangs, its health is good", long: true, want: stayed,
		before: func(s *stream) { s.target.Hang() },
		after:  func(s *stream) { s.target.Resume() },
	}, {
		name: "holder has preempted the stream", want: reprompted, stall: time.Second,
		before: func(s *stream) {
			testkit.NoError(s.t, s.holder.FillKV(s.t.Context(), 0))
			time.Sleep(200 * time.Millisecond)
		},
		after: func(s *stream) { s.holder.Resume() },
	}, {
		name: "holder's batch is full", want: reprompted,
		before: func(s *stream) { s.fill(s.holder) },
	}, {
		name: "holder's batch is full, long prompt", prompt: 1500, want: reprompted,
		before: func(s *stream) { s.fill(s.holder) },
	}, {
		name: "target's batch is full", long: true, want: reprompted, // once it has room; the client reads on until then
		before: func(s *stream) { s.fill(s.target) },
	}, {
		name: "several tokens a chunk", settings: faults(emulator.Faults{StreamInterval: 8}), want: handedOver, stall: time.Second,
	}, {
		name: "varying numbers of tokens a chunk", settings: faults(emulator.Faults{DraftTokens: 4}), want: handedOver, stall: time.Second,
	}, {
		name: "engines limit the output", settings: faults(emulator.Faults{MaxNewTokens: 300}), want: handedOver,
	}, {
		name: "no prompt details", settings: faults(emulator.Faults{NoPromptDetails: true}), want: handedOver,
	}, {
		name: "a connector that answers null", settings: faults(emulator.Faults{NoTransferParams: true}), want: reprompted, stall: time.Second,
	}, {
		name: "no connector", settings: settings{engine: func(c *emulator.Config) { c.KVConnector = nil }}, want: reprompted, stall: time.Second,
	}, {
		name: "KV of more ids", settings: faults(emulator.Faults{TransferTokens: 1}), want: reprompted, stall: time.Second,
	}, {
		name: "KV of fewer ids", settings: faults(emulator.Faults{TransferTokens: -1}), want: reprompted, stall: time.Second,
	}}
}

// TestFailures moves a stream between the replicas, each in both roles, while something is wrong.
// The stream always goes on with the ids of the uninterrupted run, and the client waits for no
// longer than it may; no engine dies; and both answer further requests right. A stream that
// leaves a prefill replica stays there where another one is reprompted, unless its engine is
// lost.
func TestFailures(t *testing.T) {
	healthy := new(oracle)
	for _, row := range failures() {
		if row.settings.oracle = healthy; row.settings.engine != nil {
			row.settings.oracle = &oracle{engine: row.settings.engine}
		}
		for holder := range 2 {
			t.Run(fmt.Sprintf("%s/from r%d", row.name, holder), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { row.play(t, holder, false) })
			})
		}
		t.Run(row.name+"/from a prefill replica", func(t *testing.T) {
			if row.want == reprompted && !row.lost {
				row.want = stayed
			}
			synctest.Test(t, func(t *testing.T) { row.play(t, 1, true) })
		})
	}
}

func (row row) play(t *testing.T, holder int, keepsKV bool) {
	f := newFleet(t, row.settings)
	output := 800
	if row.long {
		output = 2500
	}
	s := f.startStream("/v1/completions", completion(cmp.Or(row.prompt, 200), output), 20)
	s.holder, s.target = f.engines[0], f.engines[1]
	if holder == 1 {
		if _, err := s.move(1); err != nil {
			t.Fatal(err)
		}
		s.holder, s.target = s.target, s.holder
		s.waitFor(40)
	}
	s.keepsKV = keepsKV
	s.computed = make(map[*engine]float64)
	for _, e := range f.engines {
		s.computed[e] = e.metric("vllm:prompt_tokens_by_source_total", "local_compute")
	}
	if row.before != nil {
		row.before(s)
	}
	if row.want == handedOver {
		s.waitForIdle()
	}
	moved, err := s.move(1 - holder)
	got := reprompted
	switch {
	case err != nil:
		got = stayed
	case moved.Handoff:
		got = handedOver
	}
	if got != row.want {
		t.Errorf("the stream %s, want %s: %v", got, row.want, err)
	}
	if moved.Stall > cmp.Or(row.stall, 100*time.Millisecond) {
		t.Errorf("the client waited for %v", moved.Stall)
	}
	if row.after != nil {
		row.after(s)
	}
	s.end()
	for i, e := range f.engines {
		if err := f.same(f.ask(e.api, "/v1/completions", completion(250, 20)), f.oracle.ask(t, "/v1/completions", completion(250, 20))); err != nil {
			t.Errorf("afterwards, of r%d's engine: %v", i, err)
		}
	}
}

// awaitLateFetch waits until the target's engine has fetched, if it ever does, in the background what it got too late.
func (s *stream) awaitLateFetch() {
	s.background.Wait()
	time.Sleep(5 * time.Second)
}

// fill has other requests take all places of an engine's batch for 15 s, and more of them wait.
func (s *stream) fill(e *engine) {
	s.t.Helper()
	for i := range 12 {
		go s.ask(e.api, "/v1/completions", completion(10+i, 1000))
	}
	testkit.WaitFor(s.t, "requests that wait", func() bool { return e.metric("vllm:num_requests_waiting", "") > 3 })
}

// requireComputed fails unless an engine has computed so many prompt tokens since the row began, or
// more if that is not 0.
func (s *stream) requireComputed(e *engine, least float64) {
	s.t.Helper()
	n := e.metric("vllm:prompt_tokens_by_source_total", "local_compute") - s.computed[e]
	if n < least || least == 0 && n > 0 {
		s.t.Errorf("engine %s has computed %v prompt tokens", e.id, n)
	}
}

// TestPreemptedStreams has a full engine preempt a stream for 20 s while an older one goes on: the
// stream pauses or goes on elsewhere, and both are whole.
func TestPreemptedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, settings{})
		older := f.startStream("/v1/completions", completion(300, 3500), 20)
		younger := f.startStream("/v1/completions", completion(200, 400), 20)
		testkit.WaitFor(t, "both streams", func() bool {
			n := 0
			f.fronts[0].EachStream(func(one *frontend.Stream) bool {
				if one.Request().Output >= 20 {
					n++
				}
				return true
			})
			return n == 2
		})
		testkit.NoError(t, f.engines[0].FillKV(t.Context(), 1))
		time.Sleep(20 * time.Second)
		if n := f.engines[0].metric("vllm:num_preemptions_total", ""); n != 1 {
			t.Errorf("%v preemptions", n)
		}
		f.engines[0].Resume()
		younger.end()
		older.end()
	})
}
