package frontend

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// rescuer is a fake Rescuer: it names the first replica that was not tried.
type rescuer struct {
	mu      sync.Mutex
	targets []Target
	asked   [][]policies.ReplicaID
}

func (r *rescuer) Rescue(_ policies.Request, tried []policies.ReplicaID) (Target, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, slices.Clone(tried))
	for _, t := range r.targets {
		if !slices.Contains(tried, t.Replica) {
			return t, true
		}
	}
	return Target{}, false
}

func (r *rescuer) know(targets ...Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = targets
}

var _ Rescuer = (*rescuer)(nil)

// newRescueFleet is a fleet whose r0 has a Rescuer that knows all of it.
func newRescueFleet(t *testing.T, n int, change func(*Config)) (*fleet, *rescuer) {
	r := new(rescuer)
	f := newFleet(t, n, func(c *Config) {
		if c.Replica == "r0" {
			c.Rescuer = r
		}
		if change != nil {
			change(c)
		}
	})
	var all []Target
	for i := range n {
		all = append(all, f.target(i))
	}
	r.know(all...)
	return f, r
}

var cachedValue = regexp.MustCompile(`"cached_tokens":(\d+|null)`)

// rescued is what of an answer must not change when its engine dies: how much
// of the prompt was cached only the engine knew.
func rescued(s string) string { return cachedValue.ReplaceAllString(anonymous(s), "") }

// TestRescue kills the engine of answers of every kind, at every length, and
// again the engine that saved them.
func TestRescue(t *testing.T) {
	t.Parallel()
	f, _ := newRescueFleet(t, 3, nil)
	for _, kind := range kinds() { // so that the shapes are known
		post(t, f.fronts[0].client, f.fronts[0].url, kind[0], strings.Replace(kind[1], "90", "4", 1))
	}
	for n := range policies.Tokens(7) { // of seven tokens, one splits a character
		for _, kind := range kinds() {
			want := f.direct(kind[0], kind[1])
			f.paced(time.Millisecond)
			valve := f.hold(90 - 25)
			got := make(chan string, 1)
			go func() {
				_, body := post(t, f.fronts[0].client, f.fronts[0].url, kind[0], kind[1])
				got <- body
			}()
			s := f.only(3 + n)
			f.engines[0].cut()
			eventually(t, func() bool { h, _ := f.fronts[0].Holder(s.id); return h.Replica == "r1" && !h.Pending })
			f.engines[1].cut()
			eventually(t, func() bool { h, _ := f.fronts[0].Holder(s.id); return h.Replica == "r0" && h.Epoch == 3 })
			valve.let(0)
			body := <-got
			if strings.Contains(kind[1], "return_token_ids") {
				// The client has the ids of a split character: they cannot be taken back.
				body, want = strings.ReplaceAll(body, "é", ""), strings.ReplaceAll(want, "é", "")
			}
			if rescued(body) != rescued(want) {
				t.Fatalf("%s: rescued: %s", kind, difference(rescued(body), rescued(want)))
			}
		}
	}
	f.atRest()
}

// TestRescueAfterGroups kills engines that put several tokens into one event, as
// they do for a reader that is slow: the client has the text of all of them but
// for a character that the last one has begun.
func TestRescueAfterGroups(t *testing.T) {
	t.Parallel()
	f, _ := newRescueFleet(t, 3, nil)
	for _, e := range f.engines {
		e.group.Store(2)
	}
	for _, kind := range kinds() {
		if strings.Contains(kind[1], `"stream"`) {
			continue // how its events are grouped, too, would differ
		}
		post(t, f.fronts[0].client, f.fronts[0].url, kind[0], strings.Replace(kind[1], "90", "4", 1))
		for n := range policies.Tokens(14) {
			want := f.direct(kind[0], kind[1])
			f.paced(time.Millisecond)
			valve := f.hold(90 - 25)
			got := make(chan string, 1)
			go func() {
				_, body := post(t, f.fronts[0].client, f.fronts[0].url, kind[0], kind[1])
				got <- body
			}()
			s := f.only(3 + n)
			f.engines[0].cut()
			eventually(t, func() bool { h, _ := f.fronts[0].Holder(s.id); return h.Replica == "r1" && !h.Pending })
			f.engines[1].cut()
			eventually(t, func() bool { h, _ := f.fronts[0].Holder(s.id); return h.Replica == "r0" && h.Epoch == 3 })
			valve.let(0)
			if body := <-got; rescued(body) != rescued(want) {
				t.Fatalf("%s, after %d: %s", kind, n, difference(rescued(body), rescued(want)))
			}
		}
	}
	f.atRest()
}

// rescuable is a stream of r0 under way, of an answer long enough to be disturbed.
func (f *fleet) rescuable() answering { return f.begin(longer) }

func (f *fleet) expectRescued(b answering) {
	f.t.Helper()
	b.valve.let(0)
	if got := <-b.got; rescued(got) != rescued(b.want) {
		f.t.Errorf("got %s\nwant %s", got, b.want)
	}
	f.atRest()
}

// TestHang checks that an engine that stops without ending its connections is
// found out, and that a client that does not read is not taken for one.
func TestHang(t *testing.T) {
	t.Parallel()
	told := make(chan Rescue, 9)
	f, _ := newRescueFleet(t, 2, func(c *Config) {
		c.HangTimeout = 2 * time.Second
		c.OnRescue = func(r Rescue) { told <- r }
	})
	b := f.rescuable()
	_, r, _ := f.where(b.id)
	f.engines[0].freeze(r.Name)
	b.valve.let(0)
	// Not the register: the answer may have ended before anybody looks.
	if got := <-told; got.Stream != b.id || got.From != "r0" || got.To != "r1" || got.Epoch != 2 || got.Err != nil {
		t.Errorf("%+v", got)
	}
	f.expectRescued(b)
}

// TestPeerLost checks what a front does when a holder is gone, and a holder when
// a front is.
func TestPeerLost(t *testing.T) {
	t.Parallel()
	f, rs := newRescueFleet(t, 3, nil)
	b := f.rescuable()
	if _, err := f.live(t.Context(), b.id, 1, nil); err != nil {
		t.Fatal(err)
	}
	_, r, _ := f.where(b.id)
	f.engines[1].freeze(r.Name)      // nothing comes from there any more
	f.fronts[0].HandlePeerLoss("r2") // nothing is there
	rs.know(f.target(2))
	f.fronts[0].HandlePeerLoss("r1")
	eventually(t, func() bool { h, _ := f.fronts[0].Holder(b.id); return h == Holder{Replica: "r2", Epoch: 3} })
	f.expectRescued(b)

	// A front that is gone: its leg here ends, and others stay.
	b = f.rescuable()
	if _, err := f.reprompt(t.Context(), b.id, 1); err != nil {
		t.Fatal(err)
	}
	f.fronts[1].HandlePeerLoss("r2")
	if len(f.fronts[1].LocalLegs()) != 1 {
		t.Error("the wrong front's leg ends")
	}
	f.fronts[1].HandlePeerLoss("r0")
	eventually(t, func() bool { return len(f.fronts[1].LocalLegs()) == 0 })
	f.expectRescued(b) // it was not gone at all
}

// TestForwardToLostPeer checks that a request which waits at a peer for its
// first token is served by the own engine when the peer is gone.
func TestForwardToLostPeer(t *testing.T) {
	p := new(placer)
	f := newFleet(t, 2, func(c *Config) {
		if c.Replica == "r0" {
			c.Placer = p
		}
	})
	p.peer.Store(&f.fronts[1].peer)
	f.engines[1].set(nil, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	got := make(chan string, 1)
	go func() {
		_, body := post(t, f.fronts[0].client, f.fronts[0].url, "/v1/completions", longer)
		got <- body
	}()
	eventually(t, func() bool {
		return slices.Equal(f.fronts[0].Holders(), []policies.ReplicaID{"r1"}) && len(f.fronts[1].LocalLegs()) == 1
	})
	if r := f.fronts[1].LocalLegs()[0]; r.Request.Output != 0 || r.FrontEnd != "r0" || r.Request.MaxOutput != 70 || r.Request.Model != "m" {
		t.Errorf("%+v", r)
	}
	f.fronts[0].HandlePeerLoss("r1")
	if body := <-got; !strings.HasSuffix(body, "[DONE]\n\n") {
		t.Error(body)
	}
	f.atRest()
}

// TestRescueFails checks that three attempts are made, each in an epoch of its
// own, and that the client is then told.
func TestRescueFails(t *testing.T) {
	t.Parallel()
	f, rs := newRescueFleet(t, 5, func(c *Config) { c.RescueTimeout = 100 * time.Millisecond })
	b := f.rescuable()
	for i, e := range f.engines[1:] {
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if i == 0 {
				<-r.Context().Done() // never answers
			}
			panic(http.ErrAbortHandler)
		})
	}
	f.engines[0].cut()
	if got := <-b.got; !strings.Contains(got, problemOfACut) || strings.Contains(got, "[DONE]") {
		t.Errorf("the stream ends with %s", got)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.asked) != 3 || !slices.Equal(rs.asked[2], []policies.ReplicaID{"r0", "r1", "r2"}) {
		t.Errorf("asked with %v", rs.asked)
	}
	f.atRest()
}

// TestOwnEngineBack checks that a stream whom nobody else can take goes on when
// the own engine has come back.
func TestOwnEngineBack(t *testing.T) {
	t.Parallel()
	f, rs := newRescueFleet(t, 1, nil)
	rs.know()
	b := f.rescuable()
	f.engines[0].sick.Store(true)
	f.fronts[0].await(t, false) // its legs are lost, though they are not cut
	h, _ := f.fronts[0].Holder(b.id)
	if !h.Pending {
		eventually(t, func() bool { h, _ = f.fronts[0].Holder(b.id); return h.Pending })
	}
	f.engines[0].sick.Store(false)
	f.expectRescued(b)
}

// TestMuteEngine checks that an engine which does not answer for its health is
// left alone while it generates, and given up when it does nothing: streams go
// on elsewhere, and so can requests that it has not begun to answer.
func TestMuteEngine(t *testing.T) {
	t.Parallel()
	f, _ := newRescueFleet(t, 2, func(c *Config) {
		c.HealthTimeout, c.HangTimeout = time.Second, time.Second
	})
	e := f.engines[0]
	b := f.begin(strings.Replace(longer, "70", "4000", 1)) // for eight seconds at least
	e.mute.Store(true)
	eventually(t, func() bool { return e.unheard.Load() >= 3 })
	if !f.fronts[0].Status().EngineReady {
		t.Error("an engine that generates is taken to be away")
	}
	status := make(chan int, 1)
	e.set(func(_ int, r *http.Request) { <-r.Context().Done() }, nil)
	go func() {
		resp, _ := post(t, f.fronts[0].client, f.fronts[0].url, "/v1/completions", `{"prompt":"x","stream":true}`)
		status <- resp.StatusCode
	}()
	eventually(t, func() bool { return len(f.fronts[0].LocalLegs()) == 2 })
	f.engines[1].set(nil, nil)
	_, r, _ := f.where(b.id)
	e.freeze(r.Name)
	f.fronts[0].await(t, false)
	if code := <-status; code != http.StatusServiceUnavailable {
		t.Errorf("a request that was not begun has the status %d", code)
	}
	e.set(nil, nil)
	e.mute.Store(false)
	f.fronts[0].await(t, true)
	f.expectRescued(b)
}

// TestRescueOfUnmovable checks that a stream which is tied to its engine ends
// with it, and only with it.
func TestRescueOfUnmovable(t *testing.T) {
	f, rs := newRescueFleet(t, 2, nil)
	f.hold(kept)
	got := make(chan string, 1)
	go func() {
		_, body := post(t, f.fronts[0].client, f.fronts[0].url, "/v1/completions", `{"prompt":"x","max_tokens":200,"stream":true,"stop":["q"]}`)
		got <- body
	}()
	f.only(3)
	f.engines[0].sick.Store(true)
	f.fronts[0].await(t, false)
	select {
	case body := <-got:
		t.Errorf("an engine that is not well loses it: %s", body)
	default:
	}
	f.engines[0].cut()
	if body := <-got; !strings.Contains(body, problemOfACut) {
		t.Error(body)
	}
	if len(rs.asked) > 0 {
		t.Error("it was to be rescued")
	}
}

// TestReportedLoss checks that an engine that can still say that it died is
// believed, and that its word stands when there is no other.
func TestReportedLoss(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		f, rs := newRescueFleet(t, 2, func(c *Config) { c.RescueTimeout = 5 * time.Second })
		if alone {
			rs.know()
			f.fronts[0].ready.Store(true)
		}
		head := strings.Join(generation("cmpl-7", []uint32{'"', 'x', '"'}, 3, 90)[:5], "")
		var n atomic.Int64
		f.engines[0].set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if n.Add(1) > 1 {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, head+"data: {\"error\":{\"message\":\"EngineCore died\",\"code\":500}}\n\ndata: [DONE]\n\n")
		})
		_, got := post(t, f.fronts[0].client, f.fronts[0].url, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":70,"stream":true}`)
		if alone != strings.Contains(got, "EngineCore died") || !strings.HasSuffix(got, "[DONE]\n\n") {
			t.Errorf("alone %v: %s", alone, got)
		}
		if !alone && strings.Count(got, `"text"`) != 70 {
			t.Errorf("%d tokens in %s", strings.Count(got, `"text"`), got)
		}
		f.atRest()
	}
}

// TestLostWhileMoving loses the holder while a move waits for its target: what
// the target brings counts, and if it brings nothing there is the rescue.
func TestLostWhileMoving(t *testing.T) {
	t.Parallel()
	for _, brings := range []bool{true, false} {
		for _, live := range []bool{true, false} {
			t.Run(fmt.Sprint("brings ", brings, ", live ", live), func(t *testing.T) {
				t.Parallel()
				f, rs := newRescueFleet(t, 3, nil)
				b := f.rescuable()
				rs.know(f.target(2))
				held, let := make(chan struct{}), make(chan struct{})
				f.engines[1].set(func(n int, r *http.Request) {
					if n > 0 {
						return
					}
					close(held)
					if <-let; !brings {
						panic(http.ErrAbortHandler)
					}
				}, nil)
				moved := make(chan error)
				go func() {
					var err error
					if live {
						_, err = f.live(t.Context(), b.id, 1, nil)
					} else {
						_, err = f.reprompt(t.Context(), b.id, 1)
					}
					moved <- err
				}()
				<-held
				f.engines[0].cut()
				close(let)
				if err := <-moved; (err == nil) != brings {
					t.Errorf("the move ends with %v", err)
				}
				f.expectRescued(b)
			})
		}
	}
}

// TestLostBeforeMoved loses the holder before the tokens have come that a live
// move has: it cannot be, and the stream is rescued.
func TestLostBeforeMoved(t *testing.T) {
	f, _ := newRescueFleet(t, 2, nil)
	b := f.rescuable()
	moved := make(chan error)
	go func() {
		_, err := f.fronts[0].Migrate(context.Background(), Migration{Stream: b.id, From: "r0", Epoch: 1, To: f.target(1), Reservation: "r0/1", Length: 1000})
		moved <- err
	}()
	eventually(t, func() bool { h, _ := f.fronts[0].Holder(b.id); return h.Pending })
	f.engines[0].cut()
	if err := <-moved; err != session.ErrHolderLost {
		t.Errorf("the move ends with %v", err)
	}
	f.expectRescued(b)
}

// TestFaultsAtRandom moves streams in all ways, several at a time, while
// engines die and replicas are said to be gone: each client reads what it would
// have read.
func TestFaultsAtRandom(t *testing.T) {
	t.Parallel()
	f, _ := newRescueFleet(t, 4, nil)
	body := func(n int) string {
		return fmt.Sprintf(`{"model":"m","prompt":"%d","max_tokens":100,"stream":true,"stream_options":{"include_usage":true}}`, n)
	}
	const streams = 12
	var want [streams]string
	for n := range want {
		_, want[n] = post(t, f.fronts[0].client, strings.TrimPrefix(f.engines[0].URL, "http://"), "/v1/completions", body(n))
	}
	enough := f.gate(60 * streams)
	var clients, chaos sync.WaitGroup
	over := make(chan struct{})
	for n := range want {
		clients.Go(func() {
			if _, got := post(t, f.fronts[0].client, f.fronts[0].url, "/v1/completions", body(n)); rescued(got) != rescued(want[n]) {
				t.Errorf("stream %d: %s", n, difference(rescued(got), rescued(want[n])))
			}
		})
	}
	var hops, deaths atomic.Int64
	killed := make(map[string]int) // by stream; of the one that kills
	for seed := range uint64(4) {
		chaos.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 7))
			for {
				select {
				case <-over:
					return
				case <-time.After(time.Duration(rng.IntN(4)) * time.Millisecond):
				}
				var all []*Stream
				f.fronts[0].EachStream(func(s *Stream) bool { all = append(all, s); return true })
				if len(all) == 0 {
					continue
				}
				s := all[rng.IntN(len(all))]
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rng.IntN(500))*time.Millisecond)
				var err error
				switch to := rng.IntN(4); {
				case seed == 3 && deaths.Load() < 12 && killed[s.id] < session.MaxLosses:
					// One leg at a time, and none of a stream that may not lose it.
					if _, r, ok := f.where(s.id); ok {
						deaths.Add(1)
						killed[s.id]++
						f.engines[f.index(s.currentHolder().Replica)].kill(r.Name)
						eventually(t, func() bool { h, ok := f.fronts[0].Holder(s.id); return !ok || !h.Pending })
					}
					err = session.ErrHolderLost
				case rng.IntN(2) == 0:
					_, err = f.live(ctx, s.id, to, func(m *Migration) {
						if rng.IntN(4) == 0 {
							m.Hash++
						}
					})
				default:
					_, err = f.reprompt(ctx, s.id, to)
				}
				if cancel(); err == nil && hops.Add(1) == 20 {
					close(enough)
				}
			}
		})
	}
	clients.Wait()
	close(over)
	chaos.Wait()
	for i := range f.engines {
		f.forget(i)
	}
	f.atRest()
	t.Logf("%d moves, %d deaths", hops.Load(), deaths.Load())
}
