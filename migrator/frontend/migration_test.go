package frontend

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// TestMigrations migrates answers in every way.
func TestMigrations(t *testing.T) {
	runFleet(t, 3, func(t *testing.T, f *fleet) {
		f.learnTemplates()
		live := func(stream string, to int) error { _, err := f.migrateLive(t.Context(), stream, to, nil); return err }
		reprompt := func(stream string, to int) error { _, err := f.migrateReprompt(t.Context(), stream, to); return err }
		f.hop(5, live)
		f.hop(5, reprompt)
		f.hop(5, func(stream string, to int) error {
			if to == 1 {
				return live(stream, to)
			}
			return reprompt(stream, to)
		})
		// Each request arrived and ended once, at whichever replica.
		arrivals := uint64(0)
		for _, fr := range f.servers {
			arrivals += fr.Status().Flow.Seen
		}
		if want := uint64(4 * len(requestKinds())); arrivals != want {
			t.Errorf("%d arrivals are counted, want %d", arrivals, want)
		}
	})
}

// TestMigrationFails makes each step of a migration fail: the answer is complete
// nevertheless, and Holder says where the stream is.
func TestMigrationFails(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*fleet, *Migration)
		want  string // in the error
	}{
		"port closed":    {func(f *fleet, m *Migration) { m.To.Address = "127.0.0.1:1" }, "refused"},
		"no reservation": {func(f *fleet, m *Migration) { m.Reservation = "r0/none" }, "400"},
		"the target's engine is away": {func(f *fleet, m *Migration) {
			f.engines[1].unhealthy.Store(true)
			f.servers[1].waitForReady(false)
		}, "refused"},
		"the target's engine dies first": {func(f *fleet, m *Migration) { f.engines[1].sendEvents("", true) }, "gives no token"},
		"the target hangs":               {func(f *fleet, m *Migration) { f.engines[1].set(nil, silent) }, "deadline"},
		"no token ids": {func(f *fleet, m *Migration) {
			f.engines[1].sendEvents(`data: {"id":"x","choices":[{"index":0,"text":"a"}]}`+"\n\n", false)
		}, "token ids"},
		"it reports an error": {func(f *fleet, m *Migration) {
			f.engines[1].sendEvents(`data: {"error":{"message":"no","code":429}}`+"\n\n", false)
		}, "reports"},
		"other ids":       {func(f *fleet, m *Migration) { m.Hash++ }, session.ErrHash.Error()},
		"fewer tokens":    {func(f *fleet, m *Migration) { m.Length += 2 }, errShort.Error()},
		"too many tokens": {func(f *fleet, m *Migration) { m.Length -= 2 }, session.ErrOverrun.Error()},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2)
			b := f.startStream(longRequest)
			epoch, err := f.migrateLive(t.Context(), b.id, 1, func(m *Migration) {
				f.engines[1].clearReservations()
				test.spoil(f, m)
			})
			if err == nil || !strings.Contains(err.Error(), test.want) || epoch != 3 {
				t.Errorf("the migration ends in epoch %d with %v", epoch, err)
			}
			if h, ok := f.Holder(b.id); !ok || h != (Holder{Replica: "r0", Epoch: 3}) {
				t.Errorf("the stream is at %+v", h)
			}
			f.requireAnswer(b)
			if _, err := f.Migrate(t.Context(), Migration{Stream: b.id, From: "r0", Epoch: 3}); err != ErrNoStream {
				t.Errorf("a migration after the end: %v", err)
			}
		})
	}
}

// TestMigrationRefused checks which migrations are refused without an attempt,
// and that one of two concurrent ones is.
func TestMigrationRefused(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		for name, test := range map[string]struct {
			m     Migration
			want  error
			epoch policies.Epoch
		}{
			"another stream": {Migration{Stream: "r0/7", From: "r0", Epoch: 1, To: f.target(1)}, ErrNoStream, 0},
			"another holder": {Migration{Stream: b.id, From: "r1", Epoch: 1, To: f.target(0)}, ErrStaleEpoch, 0},
			"an old epoch":   {Migration{Stream: b.id, From: "r0", Epoch: 0, To: f.target(1)}, ErrStaleEpoch, 0},
			"a later epoch":  {Migration{Stream: b.id, From: "r0", Epoch: 3, To: f.target(1)}, ErrStaleEpoch, 0},
			"to itself":      {Migration{Stream: b.id, From: "r0", Epoch: 1, To: f.target(0)}, nil, 1},
		} {
			moved, err := f.Migrate(t.Context(), test.m)
			if err == nil || test.want != nil && err != test.want || moved != (MigrationResult{Epoch: test.epoch}) {
				t.Errorf("%s: %+v, %v", name, moved, err)
			}
		}
		// While one migration waits for its target, all others are stale.
		held, let := make(chan struct{}), make(chan struct{})
		f.engines[1].set(func(n int, r *http.Request) {
			if n == 0 {
				close(held)
				<-let
			}
			time.Sleep(2 * time.Millisecond)
		}, nil)
		over := make(chan MigrationResult)
		go func() {
			moved, err := f.Migrate(t.Context(), Migration{Stream: b.id, From: "r0", Epoch: 1, To: f.target(1)})
			if err != nil {
				t.Error(err)
			}
			over <- moved
		}()
		<-held
		stopped := time.Now()
		if h, ok := f.Holder(b.id); !ok || h != (Holder{Replica: "r0", Epoch: 1, Pending: true}) {
			t.Errorf("during the migration: %+v", h)
		}
		if got := f.Holders(); len(got) != 1 || got[0] != "r1" {
			t.Errorf("the holders are %v", got)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if moved, err := f.Migrate(t.Context(), Migration{Stream: b.id, From: "r0", Epoch: 1, To: f.target(1)}); err != ErrStaleEpoch || moved != (MigrationResult{}) {
					t.Errorf("a second migration: %+v, %v", moved, err)
				}
			})
		}
		wg.Wait()
		if got := f.servers[1].FrontEnds(); len(got) != 1 || got[0] != "r0" {
			t.Errorf("the front ends are %v", got)
		}
		least := time.Since(stopped) // for how long the client has waited, at least
		close(let)
		if moved := <-over; moved.Epoch != 2 || moved.Stall < least {
			t.Errorf("migrated with %+v, want epoch 2 and a stall of %v at least", moved, least)
		}
		// A replica without an address is not the own one.
		if moved, err := f.Migrate(t.Context(), Migration{Stream: b.id, From: "r1", Epoch: 2, To: policies.Target{Replica: "r9"}}); err == nil || moved != (MigrationResult{Epoch: 4}) {
			t.Errorf("a migration to a replica without an address: %+v, %v", moved, err)
		}
		f.requireAnswer(b)
	})
}

// TestLongIDs moves a stream whose token ids are a longer body than its client may send.
func TestLongIDs(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		s := f.startStream(`{"model":"m","prompt":"` + strings.Repeat("x", 1000) + `","max_tokens":70,"stream":true}`)
		if _, err := f.migrateReprompt(t.Context(), s.id, 1); err != nil {
			t.Error(err)
		}
		f.requireAnswer(s)
	}, configured(func(c *Config) { c.MaxBody = 2000 }))
}

// TestPinnedRequestDoesNotMigrate checks that a request that is tied to its
// engine is listed as pinned there and does not migrate.
func TestPinnedRequestDoesNotMigrate(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		for more, want := range map[string]policies.Features{
			`"stream":true,"stop":["never"]`:                            policies.Stop,
			`"stream":true,"seed":7`:                                    policies.Seed,
			`"stream":true,"min_tokens":60`:                             policies.MinTokens,
			`"stream":true,"user":"` + strings.Repeat("x", 5<<10) + `"`: policies.Unreadable,
			`"stream":false,"logprobs":1`:                               policies.HiddenTokens,
		} {
			f.setPace(time.Millisecond)
			done := f.start(`{"model":"m","prompt":"x","max_tokens":60,` + more + `}`)
			f.waitForLegs(1)
			r := f.LocalLegs()[0]
			if r.Pinned != policies.PinReasonOf(want) || r.FrontEnd != "r0" || r.Epoch != 1 || r.Name != r.Request.ID+"#1" || r.Request.MaxOutput != 60 || r.Since.IsZero() {
				t.Errorf("%.40s: %+v", more, r)
			}
			if moved, err := f.Migrate(t.Context(), Migration{Stream: r.Request.ID, From: "r0", Epoch: 1, To: f.target(1)}); err == nil || moved.Epoch != 1 {
				t.Errorf("%.40s: it migrates: %+v, %v", more, moved, err)
			}
			<-done
		}
		f.requireIdle()
	})
}

// startWarmup starts a stream that is long enough for a warm-up and begins to
// migrate it to r1, where the warm-up does not end by itself.
func (f *fleet) startWarmup() (b runningStream, over <-chan error) {
	f.t.Helper()
	b = f.startStream(longHandoff)
	f.engines[1].set(func(_ int, r *http.Request) {
		if r.Header.Get(LegHeader) == "" {
			<-r.Context().Done()
		}
	}, nil)
	calls := f.engines[1].calls.Load()
	end := make(chan error, 1)
	go func() {
		_, err := f.migrateReprompt(f.t.Context(), b.id, 1)
		end <- err
	}()
	waitFor(f.t, func() bool { return f.engines[1].calls.Load() > calls })
	return b, end
}

// TestTargetLostDuringWarmup loses the target before the stream is frozen: the
// migration fails.
func TestTargetLostDuringWarmup(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b, over := f.startWarmup()
		if got := f.Holders(); len(got) != 1 || got[0] != "r1" {
			t.Errorf("the holders are %v, want the target among them", got)
		}
		f.HandlePeerLoss("r1")
		if err := <-over; !errors.Is(err, errReplicaGone) {
			t.Errorf("the migration ends with %v", err)
		}
		if got := f.Holders(); len(got) != 0 {
			t.Errorf("the holders are %v", got)
		}
		f.requireAnswer(b)
	})
}

// TestHolderLostDuringWarmup loses the holder while the target warms up: the
// stream is frozen and spliced at once, because its client waits.
func TestHolderLostDuringWarmup(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b, over := f.startWarmup()
		leg := b.id + "#1"
		for clean := false; !clean; { // the text of a stream whose holder is lost must be aligned
			has, ok := f.engines[0].freeze(leg)
			if !ok {
				t.Fatal("the stream is over")
			}
			waitFor(t, func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				ids, _ := b.machine.IDs()
				clean = b.machine.Aligned()
				return len(ids) == len(has.ids)
			})
			if !clean {
				f.engines[0].thaw(leg)
				time.Sleep(5 * time.Millisecond) // for the next token
			}
		}
		f.engines[0].kill(leg)
		if err := <-over; err != nil {
			t.Error(err)
		}
		f.requireAnswer(b)
	})
}

// TestSlowReader checks that a client that does not read delays neither the
// migration of its stream nor queries about it, and that a live migration of
// tokens that the client has not got is given up.
func TestSlowReader(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		body := strings.Replace(longRequest, "70", "200", 1)
		want := f.directAnswer("/v1/completions", body)
		f.setPace(time.Millisecond)
		resp := f.postSlowly("/v1/completions", body)
		first := make([]byte, 10)
		testkit.Must(io.ReadFull(resp.Body, first))
		s := f.waitForStream(1)
		// The engine is ahead of what the client has.
		waitFor(t, func() bool {
			_, r, ok := f.findLeg(s.id)
			return ok && f.engines[0].length(r.Name) > int(s.Request().Length())
		})
		soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if epoch, err := f.migrateLive(soon, s.id, 1, nil); !errors.Is(err, context.DeadlineExceeded) || epoch != 3 {
			t.Errorf("a live migration ends in epoch %d with %v", epoch, err)
		}
		f.engines[1].clearReservations()
		waitFor(t, func() bool {
			// One event is on its way to the client. The ids up to it are enough if
			// it ends a character.
			soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := f.migrateReprompt(soon, s.id, 1)
			if err != nil {
				var b [300]byte
				n, _ := resp.Body.Read(b[:])
				first = append(first, b[:n]...)
			}
			return err == nil
		})
		rest, err := io.ReadAll(resp.Body)
		if got := string(first) + string(rest); err != nil || withoutIDs(got) != withoutIDs(want) {
			t.Errorf("%v: %s", err, firstDifference(withoutIDs(got), withoutIDs(want)))
		}
		f.requireIdle()
	})
}

// TestDisconnectDuringMigration checks that a client that disconnects ends its
// stream everywhere, in every state of a migration.
func TestDisconnectDuringMigration(t *testing.T) {
	for _, live := range []bool{true, false} {
		runFleet(t, 2, func(t *testing.T, f *fleet) {
			f.setPace(time.Millisecond)
			held := make(chan struct{})
			var once sync.Once
			f.engines[1].set(func(n int, r *http.Request) {
				once.Do(func() { close(held) })
				<-r.Context().Done() // the new leg never gives a token
			}, nil)
			ctx, leave := context.WithCancel(t.Context())
			go tryDo(f.client, jsonRequest(f.url, "/v1/completions", longRequest).WithContext(ctx))
			moved := f.begin(f.waitForStream(3).id, live)
			<-held
			leave()
			if err := <-moved; err != ErrNoStream {
				t.Errorf("live %v: the migration ends with %v", live, err)
			}
			f.requireIdle()
		})
	}
}

// begin begins a migration to r1.
func (f *fleet) begin(stream string, live bool) (over chan error) {
	over = make(chan error, 1)
	go func() {
		var err error
		if live {
			_, err = f.migrateLive(f.t.Context(), stream, 1, nil)
		} else {
			_, err = f.migrateReprompt(f.t.Context(), stream, 1)
		}
		over <- err
	}()
	return over
}

// TestStopAfterMigration checks that the end of the server reaches the leg that is the
// present one by then, and its client.
func TestStopAfterMigration(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		waitFor(t, func() bool { _, err := f.migrateLive(t.Context(), b.id, 1, nil); return err == nil })
		f.stop()
		if got := <-b.got; !strings.Contains(got, errStopping.Error()) || strings.Contains(got, "[DONE]") {
			t.Errorf("the client got %s", got)
		}
		waitFor(t, func() bool { return len(f.servers[1].LocalLegs()) == 0 && f.engines[1].length(b.id+"#2") == 0 })
	})
}

// TestEndDuringMigration checks that an answer that ends while a migration waits
// is delivered, and that the migration ends.
func TestEndDuringMigration(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		held := make(chan struct{})
		f.engines[1].set(func(n int, r *http.Request) {
			close(held)
			<-r.Context().Done()
		}, nil)
		moved := f.begin(b.id, false)
		<-held
		if err := <-moved; err != ErrNoStream {
			t.Errorf("the migration ends with %v", err)
		}
		f.requireAnswer(b)
	})
}

// TestReadLegRequest checks which header fields of a peer's request are accepted.
func TestReadLegRequest(t *testing.T) {
	good := map[string]string{ForwardHeader: "r0", RequestHeader: "r0/12", LegEpochHeader: "3", FeaturesHeader: "256",
		PromptHeader: "7", OutputHeader: "2", MigrationHeader: "r1/4"}
	header := func(change map[string]string) http.Header {
		h := http.Header{}
		for name, value := range good {
			h.Set(name, value)
		}
		for name, value := range change {
			if h.Del(name); value != "" {
				h.Set(name, value)
			}
		}
		return h
	}
	o, err := readLegRequest(0, header(nil))
	if err != nil || o.name() != "r0/12#3" || o.frontEnd != "r0" || o.request.Features != policies.BadWords>>1 ||
		o.arrival.Input != 7 || o.arrival.Output != 2 || !o.arrival.HasKV || o.reservation != "r1/4" {
		t.Errorf("%+v, %v", o, err)
	}
	// What is read is what was written.
	o.target, o.header = policies.Target{Replica: "r2", Address: "x:1"}, http.Header{"X-Request-Id": {"mine"}, "X-Cascade-Tokens": {"5"}}
	again, err := readLegRequest(0, o.headers())
	if err != nil || again.name() != o.name() || again.arrival != o.arrival || again.reservation != o.reservation || again.request != o.request {
		t.Errorf("%+v, %v", again, err)
	}
	if h := o.headers(); h.Get("X-Request-Id") != "" || h.Get("X-Cascade-Tokens") != "" {
		t.Errorf("a later leg has the fields %v", h)
	}
	first := legRequest{frontEnd: "r0", target: policies.Target{Replica: "r2", Address: "x:1", Cached: 512, Held: 4096}, header: http.Header{}}
	if o, err := readLegRequest(0, first.headers()); err != nil || o.arrival.Cached != 512 || o.held != 4096 {
		t.Errorf("a first leg: %+v, %v", o, err)
	}
	for _, bad := range []map[string]string{
		{HeldHeader: "-1"}, {HeldHeader: "4294967297"}, {CachedHeader: "x"},
		{ForwardHeader: ""}, {ForwardHeader: strings.Repeat("r", maxName+1)}, {ForwardHeader: "r1"}, {RequestHeader: "r0"},
		{RequestHeader: "r0/ 1"}, {LegEpochHeader: "0"}, {LegEpochHeader: ""}, {LegEpochHeader: "-1"}, {FeaturesHeader: "4294967296"},
		{PromptHeader: "0"}, {PromptHeader: "4294967297"}, {PromptHeader: "", MigrationHeader: ""}, {PromptHeader: "", OutputHeader: ""},
		{OutputHeader: "1e3"}, {MigrationHeader: "a\x7f"}, {RequestHeader: "", MigrationHeader: "r1/4"},
	} {
		if o, err := readLegRequest(0, header(bad)); err == nil {
			t.Errorf("%v: %+v", bad, o)
		}
	}
	if o, err := readLegRequest(0, http.Header{ForwardHeader: {"r0"}}); err != nil || o.name() != "" || o.arrival.HasKV {
		t.Errorf("a warm-up: %+v, %v", o, err)
	}
}

// FuzzReadLegRequest checks that reading what was written returns the same.
func FuzzReadLegRequest(f *testing.F) {
	f.Add("r0", "r0/12", "3", "256", "7", "2", "r1/4")
	f.Add("r0", "", "", "", "", "", "")
	f.Fuzz(func(t *testing.T, forward, request, epoch, features, prompt, output, move string) {
		h := http.Header{}
		for name, value := range map[string]string{ForwardHeader: forward, RequestHeader: request, LegEpochHeader: epoch,
			FeaturesHeader: features, PromptHeader: prompt, OutputHeader: output, MigrationHeader: move} {
			h.Set(name, value)
		}
		o, err := readLegRequest(0, h)
		if err != nil {
			return
		}
		o.target, o.header = policies.Target{Replica: "r2", Address: "x:1"}, http.Header{}
		again, err := readLegRequest(0, o.headers())
		if err != nil || again.name() != o.name() || again.arrival != o.arrival || again.reservation != o.reservation || again.request != o.request {
			t.Fatalf("%+v, again %+v, %v", o, again, err)
		}
	})
}
