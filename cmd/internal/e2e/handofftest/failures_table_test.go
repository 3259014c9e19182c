package handofftest

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// TestHandoffs moves streams back and forth between healthy engines, at positions all over a block:
// each move is a handoff, and no engine computes a token of a prompt that it fetched.
func TestHandoffs(t *testing.T) {
	for name, q := range map[string]Stream{
		"completions":       {Prompt: someIDs(90)},
		"a long completion": {Prompt: someIDs(3000)},
		"chat":              {Text: "Speak up, please."},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, settings{})
				q.Output, q.More = 3000, withUsage
				for hop := range 33 { // 7 and a block's size have no common factor
					q.Moves = append(q.Moves, 2+7*hop)
				}
				moves, positions := s.Play(q), map[int]bool{}
				for hop, m := range moves {
					if positions[m.Length%blockTokens] = true; m.Err != nil || !m.Handoff {
						t.Errorf("hop %d: %+v", hop, m)
					}
				}
				if len(moves) != len(q.Moves) || len(positions) < blockTokens/2 {
					t.Errorf("%d moves, at %d positions within a block", len(moves), len(positions))
				}
				// Only handoff legs compute: the ids after their last full block.
				if n := s.Sources(1).Computed; n > 40*blockTokens {
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

const none, all = "none", "all"

// row is one failure.
type row struct {
	name     string
	settings settings
	prompt   int  // ids; 0 means 200
	long     bool // the stream must last for longer than 20 s
	before   func(s *scene)
	want     way
	lost     bool          // the holder is, so that the target has to compute the KV
	stall    time.Duration // at most; 0 means 100 ms
	computed string        // how much of the prompt the target computes: none, all, or "" for any part
	after    func(s *scene)
}

// failures is the table of failures; see TestFailures.
func failures() []row {
	patient := func(c *frontend.Config) { c.MigrationTimeout = 2 * time.Minute }
	faults := func(f emulator.Faults) settings {
		return settings{engine: func(c *emulator.Config) { c.Faults = f }}
	}
	return []row{{
		name: "nothing is wrong", want: handedOver,
		computed: none,
	}, {
		name: "a long prompt", prompt: 3000, want: handedOver,
		computed: none,
	}, {
		name: "a fetch that fails after five seconds", long: true, want: reprompted, stall: 6 * time.Second,
		before: func(s *scene) {
			s.target.breakFetch = func() error { time.Sleep(5 * time.Second); return errors.New("no answer") }
		},
	}, {
		name: "a fetch that fails at once", want: handedOver, // vLLM does not say that it has computed all
		before:   func(s *scene) { s.target.breakFetch = func() error { return errors.New("refused") } },
		computed: all,
	}, {
		name: "unknown offer", want: handedOver,
		before: func(s *scene) {
			s.at(s.holder).SetHooks(Hooks{Kept: func(answer string) string {
				return strings.Replace(answer, `"cascade_handle":"`, `"cascade_handle":"x`, 1)
			}})
		},
		computed: all,
	}, {
		name: "holder killed after the handoff", lost: true, want: reprompted, stall: time.Second,
		before: func(s *scene) { s.whenFetching(func() { s.holder.kill() }) },
		after:  func(s *scene) { s.holder.start() },
	}, {
		name: "holder frozen after the handoff", lost: true, long: true, want: reprompted, stall: 6 * time.Second,
		before: func(s *scene) { s.whenFetching(func() { s.holder.freeze() }) },
		after:  func(s *scene) { s.holder.thaw() },
	}, {
		name: "target fetches after the deadline", settings: settings{front: patient}, long: true, want: reprompted, stall: 16 * time.Second,
		before: func(s *scene) { s.whenFetching(func() { time.Sleep(20 * time.Second) }) },
	}, {
		name: "target fetches after the lease, blocks reused", settings: settings{front: patient}, long: true, want: reprompted, stall: 16 * time.Second,
		before: func(s *scene) {
			s.whenFetching(func() {
				s.background.Add(1)
				defer s.background.Done()
				time.Sleep(lease + time.Second)
			})
		},
		after: (*scene).awaitLateFetch,
	}, {
		name: "target hangs until the lease is over, blocks reused", settings: settings{front: patient}, long: true, want: stayed,
		before: func(s *scene) {
			s.whenFetching(func() {
				s.at(s.target).SetHooks(Hooks{})
				s.target.Hang()
				s.background.Go(func() {
					time.Sleep(lease + 10*time.Second)
					s.target.Resume()
				})
			})
		},
		after: (*scene).awaitLateFetch,
	}, {
		name: "holder hangs, its health is good", want: reprompted, stall: time.Second,
		before: func(s *scene) { s.holder.Hang() },
		after:  func(s *scene) { s.holder.Resume() },
	}, {
		name: "target hangs, its health is good", long: true, want: stayed,
		before: func(s *scene) { s.target.Hang() },
		after:  func(s *scene) { s.target.Resume() },
	}, {
		name: "holder has preempted the stream", want: reprompted, stall: time.Second,
		before: func(s *scene) {
			testkit.NoError(s.t, s.holder.FillKV(s.t.Context(), 0))
			time.Sleep(200 * time.Millisecond)
		},
		after: func(s *scene) { s.holder.Resume() },
	}, {
		name: "holder's batch is full", want: reprompted,
		before: func(s *scene) { s.fill(s.holder) },
	}, {
		name: "holder's batch is full, long prompt", prompt: 1500, want: reprompted,
		before: func(s *scene) { s.fill(s.holder) },
	}, {
		name: "target's batch is full", long: true, want: reprompted, // once it has room; the client reads on until then
		before: func(s *scene) { s.fill(s.target) },
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
			row.settings.oracle = new(oracle)
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
	s := newScene(t, row.settings)
	s.holder, s.target = s.engines[holder], s.engines[1-holder]
	q := Stream{Prompt: someIDs(cmp.Or(row.prompt, 200)), Output: 800, Moves: []int{20}, More: withUsage, KeepsKV: keepsKV}
	if row.long {
		q.Output = 2500
	}
	away, begun := holder == 1, false // it moves to its holder first
	if away {
		q.Moves = []int{20, 40}
	}
	q.Ready = func() bool {
		if away {
			away = s.busy()
			return !away
		}
		if !begun {
			begun, s.before = true, [2]Sources{s.Sources(0), s.Sources(1)}
			if row.before != nil {
				row.before(s)
			}
		}
		return row.want != handedOver || !s.busy()
	}
	moves := s.Play(q)
	if len(moves) != len(q.Moves) || moves[0].Err != nil && holder == 1 {
		t.Fatalf("moves %+v\n%s", moves, &s.Log)
	}
	moved, got := moves[holder], reprompted
	switch {
	case moved.Err != nil:
		got = stayed
	case moved.Handoff:
		got = handedOver
	}
	if got != row.want {
		t.Errorf("the stream %s, want %s: %v\n%s", got, row.want, moved.Err, &s.Log)
	}
	if moved.Stall > cmp.Or(row.stall, 100*time.Millisecond) {
		t.Errorf("the client waited for %v", moved.Stall)
	}
	if n := s.computed(s.target); row.computed == none && n > 0 || row.computed == all && n < float64(len(q.Prompt)) {
		t.Errorf("the target has computed %v prompt tokens, want %s", n, row.computed)
	}
	if row.after != nil {
		row.after(s)
	}
	s.requireAnswers()
}

// awaitLateFetch waits until the target's engine has fetched, if it ever does, in the background what it got too late.
func (s *scene) awaitLateFetch() {
	s.background.Wait()
	time.Sleep(5 * time.Second)
}

// TestPreemptedStreams has a full engine preempt a stream for 20 s while an older one goes on: the
// stream pauses or goes on elsewhere, and both are whole.
func TestPreemptedStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, settings{})
		streams := [2]Stream{{Prompt: someIDs(300), Output: 3500, More: withUsage}, {Prompt: someIDs(200), Output: 400, More: withUsage}}
		ended := make(chan struct{})
		for i, q := range streams {
			want := s.oracle(q)
			go func() {
				defer func() { ended <- struct{}{} }()
				got, err := s.tryAsk(s.clients[0], q, false)
				if err != nil || !got.isBeginningOf(&want, true) {
					t.Errorf("stream %d, %v:\n%s", i, err, got.from(0))
				}
			}()
			testkit.WaitFor(t, "tokens of the stream", func() bool { return s.legs(20) == i+1 })
		}
		testkit.NoError(t, s.engines[0].FillKV(t.Context(), 1))
		time.Sleep(20 * time.Second)
		if n := s.metric(s.engines[0], "vllm:num_preemptions_total"); n != 1 {
			t.Errorf("%v preemptions", n)
		}
		s.engines[0].Resume()
		<-ended
		<-ended
	})
}
