package handofftest

import (
	"slices"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// scene is a Pair with proxies before emulated engines, on a network in memory and in virtual time, with the front ends'
// own timeouts. Clients ask r0.
type scene struct {
	*Pair
	t       *testing.T
	net     *network
	offers  offers
	engines [2]*engine
	proxies [2]*Proxy

	holder, target *engine        // of the move of a row
	before         [2]Sources     // that move
	background     sync.WaitGroup // what happens on other goroutines
}

// settings change a scene. All fields may be nil.
type settings struct {
	engine func(*emulator.Config) // of all engines
	front  func(*frontend.Config) // of both front ends
	oracle *oracle                // of these engines; nil means a new one
}

// oracle knows the answers of an engine without earlier requests. Scenes with engines of one configuration can share
// one, one after another.
type oracle struct{ answers map[string]answer } // by path and body

// newScene runs a scene until the test ends.
func newScene(t *testing.T, c settings) *scene {
	t.Helper()
	s := &scene{t: t, net: new(network)}
	var urls [2]string
	for i := range s.engines {
		s.engines[i] = newEngine(s, i, c.engine)
		s.proxies[i] = newProxy(t, s.net, s.engines[i].url(), Hooks{})
		urls[i] = s.engines[i].url()
	}
	s.Pair = newPair(t, s.net, "m", urls, func(f *frontend.Config) {
		f.Engine = s.proxies[slices.Index([]policies.ReplicaID{replica(0), replica(1)}, f.Replica)].URL
		f.Edges, f.KVTokens = policies.BucketEdges(1<<14, 4), 16384
		f.MigrationTimeout, f.HealthTimeout, f.HangTimeout, f.MinPause = 0, 0, 0, 0
		if c.front != nil {
			c.front(f)
		}
	})
	if c.oracle == nil {
		c.oracle = new(oracle)
	}
	if c.oracle.answers == nil {
		c.oracle.answers = make(map[string]answer)
	}
	var alone *engine
	s.oracle = func(q Stream) answer {
		key := q.path() + string(q.body("m"))
		a, known := c.oracle.answers[key]
		if !known {
			if alone == nil {
				alone = newEngine(s, 2, c.engine)
			}
			var err error
			a, err = s.tryAsk(alone.url(), q, false)
			testkit.NoError(t, err)
			c.oracle.answers[key] = a
		}
		return a
	}
	return s
}

// engineOf returns the engine of a replica; nil if there is none.
func (s *scene) engineOf(id string) *engine {
	for _, e := range s.engines {
		if string(e.id) == id {
			return e
		}
	}
	return nil
}

// at returns the proxy of an engine.
func (s *scene) at(e *engine) *Proxy { return s.proxies[slices.Index(s.engines[:], e)] }

// whenFetching has something done before the target's engine gets the leg that continues a stream and fetches its KV.
func (s *scene) whenFetching(do func()) {
	s.at(s.target).SetHooks(Hooks{Fetch: func(<-chan struct{}) { do() }})
}

// computed returns how many prompt tokens an engine has computed since the move of the row was due.
func (s *scene) computed(e *engine) float64 {
	i := slices.Index(s.engines[:], e)
	return s.Sources(i).Sub(s.before[i]).Computed
}

// metric returns the sum of the series of an engine's metric.
func (s *scene) metric(e *engine, name string) float64 {
	s.t.Helper()
	return Counter(s.t, s.http, e.url(), name, "")
}

// requireAnswers fails the test unless both engines answer a further request rightly.
func (s *scene) requireAnswers() {
	s.t.Helper()
	q := Stream{Prompt: someIDs(250), Output: 20}
	want := s.oracle(q)
	for _, e := range s.engines {
		if got, err := s.tryAsk(e.url(), q, false); err != nil || !got.isBeginningOf(&want, true) {
			s.t.Errorf("afterwards the engine of %s answers, %v:\n%s\nwant\n%s", e.id, err, got.from(0), want.from(0))
		}
	}
}

// fill has other requests take all places of an engine's batch for 15 s, and more of them wait.
func (s *scene) fill(e *engine) {
	s.t.Helper()
	for i := range 12 {
		go func() { _, _ = s.tryAsk(e.url(), Stream{Prompt: someIDs(10 + i), Output: 1000}, false) }() // till the end of the test
	}
	testkit.WaitFor(s.t, "requests that wait", func() bool { return s.metric(e, "vllm:num_requests_waiting") > 3 })
}

// someIDs returns a prompt of so many ids.
func someIDs(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(100 + i*7919%20000)
	}
	return ids
}

// withUsage are the fields of a request for the number of its tokens.
var withUsage = map[string]any{"stream_options": map[string]any{"include_usage": true}}

// legs returns how many streams of r0's clients have so many tokens of their answers.
func (s *scene) legs(tokens policies.Tokens) (n int) {
	s.Front[0].EachStream(func(one *frontend.Stream) bool {
		if one.Request().Output >= tokens {
			n++
		}
		return true
	})
	return n
}
