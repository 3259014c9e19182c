package frontend

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
)

// transferParams is what the fake engine reads of vLLM's kv_transfer_params.
type transferParams struct {
	Decode  bool   `json:"do_remote_decode"`
	Prefill bool   `json:"do_remote_prefill"`
	Request string `json:"remote_request_id"`
	Tokens  int    `json:"remote_num_tokens"`
}

// connector is the KV connector of all engines of a fleet. Like vLLM's it verifies nothing:
// an engine that fetches blocks which are not those of its prompt continues other ids.
type connector struct {
	mu     sync.Mutex
	kept   map[string][]uint32 // by remote_request_id
	serial int
	lie    func(params string) string // changes what the holder answers
	hidden bool                       // metrics do not show it

	asked, fetched atomic.Int64 // requests to keep, and to fetch
	fetching       func(*http.Request)
	keeping        func(*http.Request)
}

func (c *connector) serve(r *http.Request, p transferParams, prompt []uint32) (read []uint32, offer string) {
	switch {
	case p.Decode:
		c.asked.Add(1)
		if c.keeping != nil {
			c.keeping(r)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.serial++
		name := fmt.Sprint("cmpl-", c.serial)
		c.kept[name] = prompt
		offer = fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_request_id":%q,"remote_num_tokens":%d}`, name, len(prompt))
		if c.lie != nil {
			offer = c.lie(offer)
		}
		return prompt, offer
	case p.Prefill:
		c.fetched.Add(1)
		if c.fetching != nil {
			c.fetching(r)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if kept, ok := c.kept[p.Request]; !ok || formatIDs(kept, true) != formatIDs(prompt, true) {
			prompt = append([]uint32{prompt[0] + 1}, prompt[1:]...)
		}
		delete(c.kept, p.Request)
	}
	return prompt, "null"
}

// reuse gives the blocks that are kept to other requests.
func (c *connector) reuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.kept)
}

// newHandoffFleet returns a fleet whose engines have KV connectors.
func newHandoffFleet(t *testing.T, n int, change func(*Config)) (*fleet, *connector) {
	c := &connector{kept: make(map[string][]uint32)}
	var engines []*engine
	for range n {
		e := newEngine(t)
		e.connector = c
		engines = append(engines, e)
	}
	return newFleetOf(t, engines, allowHandoff(change)), c
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

// allowHandoff is change with Config.Handoff.
func allowHandoff(change func(*Config)) func(*Config) {
	return func(c *Config) {
		if c.Handoff = true; change != nil {
			change(c)
		}
	}
}

// handOff migrates a stream without a reservation.
func (f *fleet) handOff(stream string, to int) (MigrationResult, error) {
	h, r, ok := f.findLeg(stream)
	if !ok {
		return MigrationResult{}, ErrStaleEpoch
	}
	return f.migrateIDs(f.t.Context(), stream, h, r, to)
}

// handOn is handOff for fleet.hop.
func (f *fleet) handOn(stream string, to int) error {
	moved, err := f.handOff(stream, to)
	if err == nil && !moved.Handoff {
		err = errors.New("the target computed the KV")
	}
	return err
}

// TestHandoffs hands answers over, the front end's own replica among them in each role. Nothing is computed anew.
func TestHandoffs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newHandoffFleet(t, 3, nil)
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
	})
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
			f, c := newHandoffFleet(t, 2, nil)
			f.learnTemplates()
			f.setPace(time.Millisecond)
			var warm sync.WaitGroup
			for i := range 4 { // each server has two idle connections to its engine then
				srv := f.servers[i%2]
				warm.Go(func() { tryPost(t, srv.client, srv.url, "/v1/completions", longRequest) })
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
			if body := <-s.got; withoutCached(withoutIDs(body)) != withoutCached(withoutIDs(s.want)) {
				t.Errorf("got %s\nwant %s", body, s.want)
			}
			if c.asked.Load() != test.asked || c.fetched.Load() != test.fetched {
				t.Errorf("KV was kept %d times and fetched %d times, want %d and %d", c.asked.Load(), c.fetched.Load(), test.asked, test.fetched)
			}
		})
	}
}

// startSlowStream starts a stream that lasts for more than a minute; other requests, and legs
// that continue it, are answered at once.
func (f *fleet) startSlowStream(body string) runningStream {
	f.t.Helper()
	b := runningStream{got: make(chan string, 1), want: f.directAnswer("/v1/completions", body)}
	f.engines[0].slowLegs("#1")
	go func() {
		_, body := tryPost(f.t, f.servers[0].client, f.servers[0].url, "/v1/completions", body)
		b.got <- body
	}()
	b.Stream = f.waitForStream(4)
	return b
}

// slowLegs makes the legs whose name ends so take a second for each token.
func (e *engine) slowLegs(suffix string) {
	e.set(func(_ int, r *http.Request) {
		if strings.HasSuffix(r.Header.Get(LegHeader), suffix) {
			time.Sleep(time.Second)
		}
	}, nil)
}

const longPrompt = 2 * handoff.MinCopy

// longHandoff is a request whose KV is copied before the freeze.
var longHandoff = `{"model":"m","prompt":"` + strings.Repeat("x", longPrompt) + `","max_tokens":70,"stream":true,"stream_options":{"include_usage":true}}`

// TestHandoffRounds copies the KV of a long stream before it freezes. Neither engine computes
// it: nothing counts as waiting for its KV.
func TestHandoffRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newHandoffFleet(t, 2, nil)
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
	})
}

// TestHandoffFails makes each step of a handoff fail: the stream moves by reprompt, and the
// answer is that of one engine.
func TestHandoffFails(t *testing.T) {
	hang := func(r *http.Request) { <-r.Context().Done() }
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
		"the holder hangs":            {longRequest, func(_ *fleet, c *connector) { c.keeping = fromSecond(hang) }, false},
		"the holder hangs in a round": {longHandoff, func(_ *fleet, c *connector) { c.keeping = hang }, false},
		"the fetch hangs":             {longRequest, func(_ *fleet, c *connector) { c.fetching = fromSecond(hang) }, false},
		"the fetch hangs in a round":  {longHandoff, func(_ *fleet, c *connector) { c.fetching = hang }, false},
		"the target's engine fails": {longRequest, func(_ *fleet, c *connector) {
			c.fetching = fromSecond(func(*http.Request) { panic(http.ErrAbortHandler) })
		}, false},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f, c := newHandoffFleet(t, 2, nil)
			test.spoil(f, c)
			b := f.startSlowStream(test.request)
			moved, err := f.handOff(b.id, 1)
			if err != nil || moved.Handoff || moved.Stall > f.servers[0].cfg.MigrationTimeout {
				t.Errorf("%+v, %v; want a reprompt", moved, err)
			}
			f.requireAnswer(b)
			if has := f.servers[0].Engine().Connector; name == "no connector" && has != engineinfo.Absent {
				t.Errorf("the engine's connector is %v", has)
			}
			if again := f.servers[0].backoffs.mayHandOff("r0", "r1", time.Now()); again != test.again {
				t.Errorf("the next handoff is tried: %v, want %v", again, test.again)
			}
			if !f.servers[0].backoffs.mayHandOff("r0", "r1", time.Now().Add(connectorRetry)) {
				t.Error("no handoff is tried ever again")
			}
		})
	}
}

func replacing(old, text string) func(string) string {
	return func(params string) string { return strings.Replace(params, old, text, 1) }
}

// TestHandoffDeadline lets the target's engine fetch when the holder's blocks have other
// owners: it continues other ids, and its tokens are not used.
func TestHandoffDeadline(t *testing.T) {
	for name, after := range map[string]time.Duration{"deadline": handoff.Deadline + time.Second, "lease": handoff.Lease + time.Second} {
		runInBubble(t, name, func(t *testing.T) {
			f, c := newHandoffFleet(t, 2, func(c *Config) { c.MigrationTimeout = 2 * time.Minute })
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
	synctest.Test(t, func(t *testing.T) {
		f, c := newHandoffFleet(t, 2, nil)
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
	})
}

// TestHandoffEpochs makes a leg fail twice: the stream goes on at its holder in an epoch that no
// leg had, and moves again.
func TestHandoffEpochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newHandoffFleet(t, 2, nil)
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
	})
}
