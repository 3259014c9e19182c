package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/policies"
)

// TestHandoffs hands answers over, the front end's own replica among them in each role. Nothing is computed anew.
func TestHandoffs(t *testing.T) {
	runFleet(t, 3, func(t *testing.T, f *fleet) {
		c := f.connector
		f.learnTemplates()
		f.hop(5, f.handOn)
		if n := int64(2 * 5 * len(requestKinds())); c.asked.Load() != n || c.fetched.Load() != n {
			t.Errorf("%d times kept and %d times fetched, want %d", c.asked.Load(), c.fetched.Load(), n)
		}
		for _, s := range f.servers[1:] { // clients' requests arrive at r0
			for _, rate := range s.Status().Flow.Prefill {
				if rate != 0 {
					t.Error("handoffs count as prefill")
				}
			}
		}
	}, handsOver)
}

// fromSecond does f from the second call on: the first handoff of a move is before the freeze.
func fromSecond(f func(*http.Request)) func(*http.Request) {
	var calls atomic.Int64
	return func(r *http.Request) {
		if calls.Add(1) > 1 {
			f(r)
		}
	}
}

// TestFetchIsNotReplayed checks legs whose engine fetches or keeps KV, and whose connection dies unanswered: they are
// not sent a second time, because the holder has freed its blocks by then, and engines verify none. The stream goes on
// all the same.
func TestFetchIsNotReplayed(t *testing.T) {
	for _, test := range []struct {
		name           string
		lose           func(*connector, func(*http.Request))
		asked, fetched int64
	}{
		{"keep", func(c *connector, die func(*http.Request)) { c.keeping = die }, 1, 0},
		{"warm-up", func(c *connector, die func(*http.Request)) { c.fetching = die }, 1, 1},
		{"leg", func(c *connector, die func(*http.Request)) { c.fetching = fromSecond(die) }, 2, 2},
	} {
		runInBubble(t, test.name, func(t *testing.T) {
			f := newFleet(t, 2, handsOver)
			c := f.connector
			f.learnTemplates()
			f.setPace(time.Millisecond)
			var warm sync.WaitGroup
			for i := range 4 { // each server has two idle connections to its engine then
				warm.Go(func() { f.servers[i%2].tryPost("/v1/completions", longRequest) })
			}
			warm.Wait()
			var died atomic.Bool
			test.lose(c, func(*http.Request) {
				if !died.Swap(true) {
					c.reuse()
					panic(http.ErrAbortHandler)
				}
			})
			s := f.startKind(requestKinds()[0], 3)
			waitFor(t, func() bool {
				_, err := f.handOff(s.id, 1)
				return err == nil
			})
			f.requireRescuedAnswer(s)
			if c.asked.Load() != test.asked || c.fetched.Load() != test.fetched {
				t.Errorf("KV was kept %d times and fetched %d times, want %d and %d", c.asked.Load(), c.fetched.Load(), test.asked, test.fetched)
			}
		})
	}
}

const longPrompt = 2 * handoff.MinCopy

// longHandoff is a request whose KV is copied before the freeze.
var longHandoff = `{"model":"m","prompt":"` + strings.Repeat("x", longPrompt) + `","max_tokens":70,"stream":true,"stream_options":{"include_usage":true}}`

// TestHandoffRounds copies the KV of a long stream before it freezes. Neither engine computes
// it: nothing counts as waiting for its KV.
func TestHandoffRounds(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		c := f.connector
		b := f.startStream(longHandoff)
		idle := func(*http.Request) {
			for i, s := range f.servers {
				if l := s.Status().Load; l.Waiting > 0 {
					t.Errorf("r%d: %+v", i, l)
				}
			}
		}
		c.keeping, c.fetching = idle, idle
		if moved, err := f.handOff(b.id, 1); err != nil || !moved.Handoff || c.asked.Load() != 2 || c.fetched.Load() != 2 {
			t.Errorf("%+v, %v; %d times kept and %d times fetched, want 2", moved, err, c.asked.Load(), c.fetched.Load())
		}
		f.requireAnswer(b)
	}, handsOver)
}

// TestHandoffFails makes each step of a handoff fail: the stream moves by reprompt, and the
// answer is that of one engine.
func TestHandoffFails(t *testing.T) {
	for name, test := range map[string]struct {
		request string
		spoil   func(*fleet, *connector)
		again   bool // the next handoff between the two is tried, too
	}{
		"no connector": {longRequest, func(f *fleet, c *connector) { f.engines[0].connector = nil }, false},
		"other ids":    {longRequest, func(_ *fleet, c *connector) { c.lie = replacing(`"remote_num_tokens":`, `"remote_num_tokens":1`) }, true},
		"no count":     {longRequest, func(_ *fleet, c *connector) { c.lie = replacing(`"remote_num_tokens"`, `"other"`) }, true},
		"no offer": {longRequest, func(_ *fleet, c *connector) {
			c.lie = replacing(`"do_remote_prefill":true`, `"do_remote_prefill":false`)
		}, true},
		"the holder hangs":            {longRequest, func(_ *fleet, c *connector) { c.keeping = fromSecond(hangs) }, false},
		"the holder hangs in a round": {longHandoff, func(_ *fleet, c *connector) { c.keeping = hangs }, false},
		"the fetch hangs":             {longRequest, func(_ *fleet, c *connector) { c.fetching = fromSecond(hangs) }, false},
		"the fetch hangs in a round":  {longHandoff, func(_ *fleet, c *connector) { c.fetching = hangs }, false},
		"the target's engine fails":   {longRequest, func(_ *fleet, c *connector) { c.fetching = fromSecond(dies) }, false},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, handsOver)
			c := f.connector
			test.spoil(f, c)
			b := f.startSlowStream(test.request)
			moved, err := f.handOff(b.id, 1)
			if err != nil || moved.Handoff || moved.Stall > f.cfg.MigrationTimeout {
				t.Errorf("%+v, %v; want a reprompt", moved, err)
			}
			f.requireAnswer(b)
			if has := f.Engine().Connector; name == "no connector" && has != engineinfo.Absent {
				t.Errorf("the engine's connector is %v", has)
			}
			if again := f.backoffs.mayHandOff("r0", "r1", time.Now()); again != test.again {
				t.Errorf("the next handoff is tried: %v, want %v", again, test.again)
			}
			if !f.backoffs.mayHandOff("r0", "r1", time.Now().Add(connectorRetry)) {
				t.Error("no handoff is tried ever again")
			}
		})
	}
}

// hangs and dies are what an engine may do while it keeps KV or fetches it.
func hangs(r *http.Request) { <-r.Context().Done() }
func dies(*http.Request)    { panic(http.ErrAbortHandler) }

func replacing(old, text string) func(string) string {
	return func(params string) string { return strings.Replace(params, old, text, 1) }
}

// TestHandoffDeadline lets the target's engine fetch when the holder's blocks have other
// owners: it continues other ids, and its tokens are not used.
func TestHandoffDeadline(t *testing.T) {
	for name, after := range map[string]time.Duration{"deadline": handoff.Deadline + time.Second, "lease": handoff.Lease + time.Second} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, handsOver, configured(func(c *Config) { c.MigrationTimeout = 2 * time.Minute }))
			c := f.connector
			c.fetching = fromSecond(func(*http.Request) { time.Sleep(after); c.reuse() })
			b := f.startSlowStream(longRequest)
			moved, err := f.handOff(b.id, 1)
			if err != nil || moved.Handoff || moved.Stall < handoff.Deadline || moved.Stall > handoff.Lease {
				t.Errorf("%+v, %v; want a reprompt after the deadline", moved, err)
			}
			f.requireAnswer(b)
		})
	}
}

// TestHandoffHolderLost loses the holder after it has handed over: its memory may be that of
// another process then.
func TestHandoffHolderLost(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		c := f.connector
		b := f.startStream(longRequest)
		var once sync.Once
		c.fetching = fromSecond(func(r *http.Request) {
			once.Do(func() {
				f.engines[0].kill(b.id + "#1")
				<-r.Context().Done() // or it would continue other ids
			})
			c.reuse()
		})
		start := time.Now()
		if moved, err := f.handOff(b.id, 1); err != nil || moved.Handoff || moved.Epoch != 3 {
			t.Errorf("%+v, %v; want a reprompt in epoch 3", moved, err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("the loss was noticed after %v", d)
		}
		f.requireAnswer(b)
	}, handsOver)
}

// TestHandoffEpochs makes a leg fail twice: the stream goes on at its holder in an epoch that no
// leg had, and moves again.
func TestHandoffEpochs(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		c := f.connector
		b := f.startStream(longRequest)
		c.fetching = func(*http.Request) { // before the freeze; what comes after it is refused
			f.engines[1].set(nil, func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				http.Error(w, "no", http.StatusBadRequest)
			})
		}
		if moved, err := f.handOff(b.id, 1); err == nil || moved != (MigrationResult{Epoch: 4}) {
			t.Errorf("%+v, %v; want an error and epoch 4", moved, err)
		}
		f.setPace(2 * time.Millisecond)
		if moved, err := f.handOff(b.id, 1); err != nil || moved.Epoch != 5 {
			t.Errorf("%+v, %v; want epoch 5", moved, err)
		}
		f.requireAnswer(b)
	}, handsOver)
}

// TestKVConnector checks what a server learns of its engine's KV connector at the start: from its
// metrics, or else from its answer to a request for a handover.
func TestKVConnector(t *testing.T) {
	own := replacing(`{"do_remote_prefill"`, `{"kv_connector":"CascadeConnector","do_remote_prefill"`)
	for name, test := range map[string]struct {
		connector *connector
		want      engineinfo.KVConnector
	}{
		"metrics": {&connector{}, engineinfo.KVConnector{Presence: engineinfo.Present, Name: "nixl"}},
		"answer":  {&connector{hidden: true, lie: own}, engineinfo.KVConnector{Presence: engineinfo.Present, Name: "CascadeConnector"}},
		"unnamed": {&connector{hidden: true}, engineinfo.KVConnector{Presence: engineinfo.Present}},
		"none":    {nil, engineinfo.KVConnector{Presence: engineinfo.Absent}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 1, func(f *fleet, c *Config) {
				if f.engines[0].connector = test.connector; test.connector != nil {
					test.connector.kept = make(map[string][]uint32)
				}
				c.Handoff = true
			})
			e := f.engines[0]
			if got, busy := f.KVConnector(); got != test.want || busy {
				t.Errorf("%+v, busy %v; want %+v", got, busy, test.want)
			}
			time.Sleep(time.Second)
			if n := e.calls.Load(); n > 1 || name == "metrics" && n > 0 {
				t.Errorf("the engine was asked %d times", n)
			}
			if startServer(t, e.URL, nil); e.calls.Load() > 1 {
				t.Error("the engine was asked although no handoff is allowed")
			}
		})
	}
}

// TestConnectorAskedAgain lets the first request for a handover take too long.
func TestConnectorAskedAgain(t *testing.T) {
	var proceed chan struct{}
	runFleet(t, 1, func(t *testing.T, f *fleet) {
		if has := f.Engine().Connector; has != engineinfo.Unknown {
			t.Errorf("an engine that does not answer: %v", has)
		}
		close(proceed)
		waitFor(t, func() bool { return f.Engine().Connector == engineinfo.Absent })
	}, func(f *fleet, c *Config) {
		proceed = f.engines[0].blockAt(0)
		c.Handoff, c.HealthTimeout = true, time.Second
	})
}

// TestCheckHandoff checks between which engines a handoff is tried. Of peers that do not say what they have it is. Of
// its own engine the server knows better than the messages say.
func TestCheckHandoff(t *testing.T) {
	unknown, none := engineinfo.KVConnector{}, engineinfo.KVConnector{Presence: engineinfo.Absent}
	nixl := engineinfo.KVConnector{Presence: engineinfo.Present, Name: "nixl"}
	other := engineinfo.KVConnector{Presence: engineinfo.Present, Name: "CascadeConnector"}
	own, r1, r2 := policies.Target{}, policies.Target{Replica: "r1", Address: "x:1"}, policies.Target{Replica: "r2", Address: "x:2"}
	for name, test := range map[string]struct {
		m      Migration
		change func(*engineFacts)
		tried  bool
	}{
		"the same connector":    {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: nixl, ToConnector: nixl}, nil, true},
		"older peers":           {Migration{From: "r1", FromAddress: "x:1", To: r2}, nil, true},
		"none at the target":    {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: nixl, ToConnector: none}, nil, false},
		"none at the holder":    {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: none, ToConnector: nixl}, nil, false},
		"another at the target": {Migration{From: "r1", FromAddress: "x:1", To: r2, FromConnector: nixl, ToConnector: other}, nil, false},
		"a busy holder":         {Migration{From: "r1", FromAddress: "x:1", To: r2, FromBusy: true}, nil, false},
		"that keeps the KV":     {Migration{From: "r1", FromAddress: "x:1", To: r2, FromBusy: true, KeepsKV: true}, nil, true},
		"an unreachable holder": {Migration{From: "r1", To: r2}, nil, false},
		"the own engine":        {Migration{From: "r0", To: r1, FromConnector: none, FromBusy: true}, nil, true},
		"with a queue": {Migration{From: "r0", To: r1}, func(s *engineFacts) {
			s.load, s.loadAt = policies.EngineLoad{Waiting: 1, Queued: 1}, time.Now()
		}, false},
		"without a connector": {Migration{From: "r0", To: r1, FromConnector: nixl}, func(s *engineFacts) { s.info.Connector = engineinfo.Absent }, false},
		"to one without": {Migration{From: "r1", FromAddress: "x:1", To: own, FromConnector: unknown, ToConnector: nixl}, func(s *engineFacts) {
			s.info.Connector = engineinfo.Absent
		}, false},
	} {
		srv := testkit.Must(New(Config{Replica: "r0", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}, Handoff: true}))
		if test.change != nil {
			test.change(srv.engineFacts)
		}
		if err := srv.checkHandoff(test.m, time.Now()); (err == nil) != test.tried {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestConnectorsLearn checks for how long an engine that hands nothing over is left alone.
func TestConnectorsLearn(t *testing.T) {
	var c backoffs
	now := time.Now()
	until := func(to policies.ReplicaID, want time.Duration) {
		t.Helper()
		if want > 0 && c.mayHandOff("a", to, now.Add(want-1)) || !c.mayHandOff("a", to, now.Add(want)) {
			t.Errorf("a to %s is not tried again after %v", to, want)
		}
	}
	late := fmt.Errorf("a: %w", context.DeadlineExceeded)
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 64, 120, 120} {
		c.learn("a", "b", handoff.KeepKV, late, now)
		until("b", want*time.Second)
		until("c", want*time.Second)
	}
	c.learn("a", "c", handoff.KeepKV, nil, now)
	until("b", 0)
	c.learn("a", "b", handoff.KeepKV, late, now)
	until("b", silentRetry)
	c.learn("a", "b", handoff.CopyKV, late, now)
	until("b", fetchRetry)
	until("c", silentRetry)
	c.learn("a", "b", handoff.KeepKV, engineinfo.ErrNoConnector, now)
	until("c", connectorRetry)
	c.forget("a")
	for _, err := range []error{errors.New("odd"), handoff.ErrHolderLost, context.Canceled} {
		c.learn("a", "b", handoff.KeepKV, err, now)
		until("b", 0)
	}
}

// An answer without parameters means that a Cascade connector has no migrator at the moment; other engines have no
// connector.
func TestCheckNull(t *testing.T) {
	gone := errors.New("gone")
	for _, c := range []struct {
		name      string
		err, want error
	}{
		{engineinfo.Cascade, engineinfo.ErrNoConnector, errNotConnected}, {"nixl", engineinfo.ErrNoConnector, engineinfo.ErrNoConnector},
		{"", engineinfo.ErrNoConnector, engineinfo.ErrNoConnector}, {engineinfo.Cascade, gone, gone}, {engineinfo.Cascade, nil, nil},
	} {
		if got := checkNull(engineinfo.KVConnector{Name: c.name}, c.err); got != c.want {
			t.Errorf("%q, %v: %v", c.name, c.err, got)
		}
	}
}

// TestPauseForTransfer pauses an engine for four seconds: it is hung, unless its KV travels then, as in
// the first handshake of NIXL.
func TestPauseForTransfer(t *testing.T) {
	const pause = 4 * time.Second
	for name, hangs := range map[string]uint64{"while its KV travels": 0, "alone": 1} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, handsOver)
			f.connector.fetching = func(*http.Request) { time.Sleep(2 * pause) }
			var paused atomic.Bool
			f.engines[0].set(func(int, *http.Request) {
				for paused.Load() {
					time.Sleep(10 * time.Millisecond)
				}
				time.Sleep(2 * time.Millisecond)
			}, nil)
			answer, moved := f.start(longRequest), make(chan error, 1)
			s := f.waitForStream(4)
			if hangs > 0 {
				moved <- nil
			} else {
				go func() {
					_, err := f.handOff(s.id, 1)
					moved <- err
				}()
				waitFor(t, func() bool { return f.connector.fetched.Load() > 0 })
			}
			paused.Store(true)
			time.Sleep(pause)
			if got := f.Status().EngineHangs; got != hangs {
				t.Errorf("hung %d times, want %d", got, hangs)
			}
			paused.Store(false)
			<-answer
			<-moved
		})
	}
}
