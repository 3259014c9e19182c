package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// adopter is a fake Adopter that has every reservation, for the front end r0.
type adopter struct{ asked atomic.Int64 }

func (a *adopter) Adopt(reservation, request string, frontEnd policies.ReplicaID) (json.RawMessage, error) {
	a.asked.Add(1)
	if frontEnd != "r0" || !strings.HasPrefix(request, "r0/") {
		return nil, fmt.Errorf("no reservation %s of request %s for %s", reservation, request, frontEnd)
	}
	return json.RawMessage(fmt.Sprintf(`{"cascade_reservation":%q}`, reservation)), nil
}

var _ Adopter = (*adopter)(nil)

// fleet is several replicas; clients use the first one, r0.
type fleet struct {
	t          *testing.T
	servers    []*testServer
	engines    []*engine
	migrations atomic.Int64
}

func newFleet(t *testing.T, n int, change func(*Config)) *fleet {
	var engines []*engine
	for range n {
		engines = append(engines, newEngine(t))
	}
	return newFleetOf(t, engines, change)
}

// newFleetOf returns a fleet of these engines.
func newFleetOf(t *testing.T, engines []*engine, change func(*Config)) *fleet {
	f := &fleet{t: t, engines: engines}
	for i, e := range engines {
		f.servers = append(f.servers, startServer(t, e.URL, func(c *Config) {
			c.Replica, c.Adopter = policies.ReplicaID(fmt.Sprint("r", i)), new(adopter)
			if change != nil {
				change(c)
			}
		}))
	}
	return f
}

// runFleet runs a test of a fleet in virtual time.
func runFleet(t *testing.T, replicas int, test func(t *testing.T, f *fleet)) {
	synctest.Test(t, func(t *testing.T) { test(t, newFleet(t, replicas, nil)) })
}

// setPace makes every engine wait before each token.
func (f *fleet) setPace(d time.Duration) {
	for _, e := range f.engines {
		e.set(func(int, *http.Request) { time.Sleep(d) }, nil)
	}
}

func (f *fleet) target(i int) policies.Target {
	return policies.Target{Replica: policies.ReplicaID(fmt.Sprint("r", i)), Address: f.servers[i].peer}
}

func (f *fleet) index(r policies.ReplicaID) (i int) {
	fmt.Sscanf(string(r), "r%d", &i)
	return i
}

// findLeg returns a stream's holder and its leg there; false if the leg has not
// begun.
func (f *fleet) findLeg(stream string) (Holder, LocalLeg, bool) {
	h, ok := f.servers[0].Holder(stream)
	if !ok {
		return h, LocalLeg{}, false
	}
	for _, r := range f.servers[f.index(h.Replica)].LocalLegs() {
		if r.Request.ID == stream && r.Epoch == h.Epoch && r.Request.Output > 0 {
			return h, r, true
		}
	}
	return h, LocalLeg{}, false
}

// waitForStream waits until the one stream of r0 has that many tokens.
func (f *fleet) waitForStream(output policies.Tokens) *Stream {
	f.t.Helper()
	var s *Stream
	waitFor(f.t, func() bool {
		s = nil
		f.servers[0].EachStream(func(one *Stream) bool { s = one; return false })
		return s != nil && s.Request().Output >= output
	})
	return s
}

// migrateLive migrates a stream with its KV, as a source and a target would;
// spoil may change the request.
func (f *fleet) migrateLive(ctx context.Context, stream string, to int, spoil func(*Migration)) (policies.Epoch, error) {
	h, r, ok := f.findLeg(stream)
	if !ok {
		return 0, ErrStaleEpoch
	}
	from := f.index(h.Replica)
	has, ok := f.engines[from].freeze(r.Name)
	if !ok {
		f.engines[from].thaw(r.Name)
		return 0, ErrStaleEpoch
	}
	name := fmt.Sprint(h.Replica, "/", f.migrations.Add(1))
	f.engines[to].reserve(name, has)
	m := Migration{Stream: stream, From: h.Replica, Epoch: h.Epoch, To: f.target(to), Reservation: name,
		Length: len(has.ids), Hash: prefix.Hash(0).Extend(has.ids...), Cached: int(r.Request.Input) / 16 * 16}
	if spoil != nil {
		spoil(&m)
	}
	moved, err := f.servers[0].Migrate(ctx, m)
	if err != nil {
		f.servers[from].AdvanceEpoch(stream, moved.Epoch)
		f.engines[from].thaw(r.Name)
	}
	return moved.Epoch, err
}

func (f *fleet) migrateReprompt(ctx context.Context, stream string, to int) (policies.Epoch, error) {
	h, r, ok := f.findLeg(stream)
	if !ok {
		return 0, ErrStaleEpoch
	}
	moved, err := f.migrateIDs(ctx, stream, h, r, to)
	return moved.Epoch, err
}

// idMigration returns what the executors ask of the front end to move a stream without a
// reservation.
func (f *fleet) idMigration(stream string, h Holder, r LocalLeg, to int) Migration {
	from := f.servers[f.index(h.Replica)]
	m := Migration{Stream: stream, From: h.Replica, FromAddress: from.peer, Epoch: h.Epoch, To: f.target(to), Cached: int(r.Request.Input) / 16 * 16}
	m.FromConnector, m.FromBusy = from.KVConnector()
	m.ToConnector, _ = f.servers[to].KVConnector()
	return m
}

// migrateIDs migrates a stream without a reservation.
func (f *fleet) migrateIDs(ctx context.Context, stream string, h Holder, r LocalLeg, to int) (MigrationResult, error) {
	moved, err := f.servers[0].Migrate(ctx, f.idMigration(stream, h, r, to))
	if err != nil {
		f.servers[f.index(h.Replica)].AdvanceEpoch(stream, moved.Epoch)
	}
	return moved, err
}

// requireIdle fails if anything is left of the requests that ran.
func (f *fleet) requireIdle() {
	f.t.Helper()
	for _, fr := range f.servers {
		waitFor(f.t, func() bool {
			l := fr.Status().Load
			return l == policies.Load{} && len(fr.LocalLegs()) == 0 && len(fr.FrontEnds()) == 0 && len(fr.Holders()) == 0 && fr.inFlight.isIdle()
		})
	}
	for i, e := range f.engines {
		waitFor(f.t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			if len(e.reserved) > 0 {
				f.t.Fatalf("engine %d keeps reservations", i)
			}
			return len(e.runs) == 0
		})
	}
}

// requestKinds returns the requests whose answers must not show that they
// migrated.
func requestKinds() (all [][2]string) {
	for path, prompt := range map[string]string{
		"/v1/completions":      `"prompt":"Once \"upon\" a time"`,
		"/v1/chat/completions": `"messages":[{"role":"user","content":"Häh?"}]`,
	} {
		for _, more := range []string{"", `,"return_token_ids":true`, `,"stream":true`, `,"stream":true,"return_token_ids":true`,
			`,"stream":true,"stream_options":{"include_usage":true}`, `,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true}`} {
			all = append(all, [2]string{path, `{"model":"m",` + prompt + more + `,"min_tokens":3,"max_tokens":90}`})
		}
	}
	return all
}

// hop moves an answer of every kind from replica to replica, and compares it with the engine's own.
func (f *fleet) hop(hops int, move func(stream string, to int) error) {
	f.t.Helper()
	for _, kind := range requestKinds() {
		s, hop := f.startKind(kind, 3), 0
		waitFor(f.t, func() bool {
			err := move(s.id, (hop+1)%3)
			if err == nil {
				hop++
			} else if err != ErrStaleEpoch {
				f.t.Fatalf("%s: hop %d: %v", kind, hop, err)
			}
			return hop == hops
		})
		if h, _ := f.servers[0].Holder(s.id); h != (Holder{Replica: f.target(hops % 3).Replica, Epoch: policies.Epoch(hops + 1)}) || s.Splices() != hops {
			f.t.Errorf("%s: after %d hops the stream is at %+v", kind, hops, h)
		}
		if body := <-s.got; withoutIDs(body) != withoutIDs(s.want) {
			f.t.Fatalf("%s: moved\n got %s\nwant %s", kind, body, s.want)
		}
	}
	f.requireIdle()
}

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

// directAnswer returns what an engine answers when it is asked directly.
func (f *fleet) directAnswer(path, body string) string {
	f.t.Helper()
	f.setPace(0)
	_, want := post(f.t, f.servers[0].client, strings.TrimPrefix(f.engines[0].URL, "http://"), path, body)
	return want
}

// runningStream is a stream of r0 in progress, and the answer that it must
// become.
type runningStream struct {
	*Stream
	got  chan string
	want string
}

// startStream starts a paced stream and waits for four tokens.
func (f *fleet) startStream(body string) runningStream {
	f.t.Helper()
	return f.startKind([2]string{"/v1/completions", body}, 4)
}

// startKind starts a paced stream of a kind and waits until it has that many tokens.
func (f *fleet) startKind(kind [2]string, output policies.Tokens) runningStream {
	f.t.Helper()
	b := runningStream{got: make(chan string, 1), want: f.directAnswer(kind[0], kind[1])}
	f.setPace(2 * time.Millisecond)
	go func() {
		_, body := tryPost(f.t, f.servers[0].client, f.servers[0].url, kind[0], kind[1])
		b.got <- body
	}()
	b.Stream = f.waitForStream(output)
	return b
}

// learnTemplates lets r0 learn the templates of the answers of all kinds.
func (f *fleet) learnTemplates() {
	f.t.Helper()
	for _, kind := range requestKinds() {
		post(f.t, f.servers[0].client, f.servers[0].url, kind[0], strings.Replace(kind[1], "90", "4", 1))
	}
}

func (f *fleet) requireAnswer(b runningStream) {
	f.t.Helper()
	if got := <-b.got; withoutIDs(got) != withoutIDs(b.want) {
		f.t.Errorf("got %s\nwant %s", got, b.want)
	}
	f.requireIdle()
}

const longRequest = `{"model":"m","prompt":"x","max_tokens":70,"stream":true,"stream_options":{"include_usage":true}}`

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
			f.servers[1].waitForReady(f.t, false)
		}, "refused"},
		"the target's engine dies first": {func(f *fleet, m *Migration) { f.engines[1].sendEvents("", true) }, "gives no token"},
		"the target hangs": {func(f *fleet, m *Migration) {
			f.engines[1].set(nil, func(_ http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				<-r.Context().Done()
			})
		}, "deadline"},
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
			f := newFleet(t, 2, nil)
			b := f.startStream(longRequest)
			epoch, err := f.migrateLive(t.Context(), b.id, 1, func(m *Migration) {
				f.clearReservations(1)
				test.spoil(f, m)
			})
			if err == nil || !strings.Contains(err.Error(), test.want) || epoch != 3 {
				t.Errorf("the migration ends in epoch %d with %v", epoch, err)
			}
			if h, ok := f.servers[0].Holder(b.id); !ok || h != (Holder{Replica: "r0", Epoch: 3}) {
				t.Errorf("the stream is at %+v", h)
			}
			f.requireAnswer(b)
			if _, err := f.servers[0].Migrate(t.Context(), Migration{Stream: b.id, From: "r0", Epoch: 3}); err != ErrNoStream {
				t.Errorf("a migration after the end: %v", err)
			}
		})
	}
}

// clearReservations drops the reservations at an engine: the fake has no leases.
func (f *fleet) clearReservations(i int) {
	f.engines[i].mu.Lock()
	defer f.engines[i].mu.Unlock()
	clear(f.engines[i].reserved)
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
			moved, err := f.servers[0].Migrate(t.Context(), test.m)
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
			moved, err := f.servers[0].Migrate(t.Context(), Migration{Stream: b.id, From: "r0", Epoch: 1, To: f.target(1)})
			if err != nil {
				t.Error(err)
			}
			over <- moved
		}()
		<-held
		stopped := time.Now()
		if h, ok := f.servers[0].Holder(b.id); !ok || h != (Holder{Replica: "r0", Epoch: 1, Pending: true}) {
			t.Errorf("during the migration: %+v", h)
		}
		if got := f.servers[0].Holders(); len(got) != 1 || got[0] != "r1" {
			t.Errorf("the holders are %v", got)
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if moved, err := f.servers[0].Migrate(t.Context(), Migration{Stream: b.id, From: "r0", Epoch: 1, To: f.target(1)}); err != ErrStaleEpoch || moved != (MigrationResult{}) {
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
		if moved, err := f.servers[0].Migrate(t.Context(), Migration{Stream: b.id, From: "r1", Epoch: 2, To: policies.Target{Replica: "r9"}}); err == nil || moved != (MigrationResult{Epoch: 4}) {
			t.Errorf("a migration to a replica without an address: %+v, %v", moved, err)
		}
		f.requireAnswer(b)
	})
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
			done := make(chan struct{})
			go func() {
				defer close(done)
				tryPost(t, f.servers[0].client, f.servers[0].url, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":60,`+more+`}`)
			}()
			waitFor(t, func() bool { return len(f.servers[0].LocalLegs()) == 1 })
			r := f.servers[0].LocalLegs()[0]
			if r.Pinned != policies.PinReasonOf(want) || r.FrontEnd != "r0" || r.Epoch != 1 || r.Name != r.Request.ID+"#1" || r.Request.MaxOutput != 60 || r.Since.IsZero() {
				t.Errorf("%.40s: %+v", more, r)
			}
			if moved, err := f.servers[0].Migrate(t.Context(), Migration{Stream: r.Request.ID, From: "r0", Epoch: 1, To: f.target(1)}); err == nil || moved.Epoch != 1 {
				t.Errorf("%.40s: it migrates: %+v, %v", more, moved, err)
			}
			<-done
		}
		f.requireIdle()
	})
}
