package handofftest

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Engine is an engine that publishes KV events, with a prefix cache that is soon full.
// All fields but SGLang are required.
type Engine struct {
	// SGLang says that SGLang's endpoint empties the cache. Else vLLM's of its development mode do, and the engine has
	// vLLM's counters of cached tokens.
	SGLang bool

	URL, Model                      string
	Endpoint, ReplayEndpoint, Topic string // as in its --kv-events-config
	BlockTokens                     int
	Tokens                          int    // of the prefix cache
	Restart                         func() // ends the engine at once, starts it anew and returns when it serves
}

// player sends requests and compares.
type player struct {
	Engine
	t      *testing.T
	http   *http.Client
	rng    *rand.Rand
	follow *follower
	all    []*conversation
	// whole and partial are the turns of which the engine found all that came before, and the others.
	whole, partial int
}

// conversation is a prompt that grows by what the engine answers and by what is asked next.
type conversation struct {
	salt string
	ids  []uint32
}

// Play sends conversations to an engine and follows its events: turns, evictions, requests at the same time, salts, resets, a
// follower that comes late, and a restart.
func Play(t *testing.T, e Engine) {
	p := newPlayer(t, e)
	p.turns(40)
	if p.whole == 0 || p.partial < len(p.all) || p.follow.removed() == 0 {
		t.Errorf("%d turns found all that came before, %d did not, and %d blocks were removed: the test does not test enough", p.whole, p.partial, p.follow.removed())
	}

	// At the same time, and with the same prompt.
	equal := p.random(3*e.BlockTokens + 5)
	var wg sync.WaitGroup
	for range 3 {
		p.askBeside(&wg, &conversation{ids: slices.Clone(equal)}, 2*e.BlockTokens)
	}
	for _, c := range p.all[:3] {
		p.askBeside(&wg, c, 20)
	}
	wg.Wait()
	p.turns(6)
	p.turn(&conversation{ids: slices.Clone(equal)}, 1)

	// Prompts of different salts have nothing in common.
	for _, salt := range []string{"tenant-a", "", "tenant-b", "tenant-a"} {
		p.turn(&conversation{salt: salt, ids: slices.Clone(equal)}, 1)
	}

	// A follower that comes late asks for what it has missed.
	p.follow.stop()
	for _, c := range p.all {
		p.ask(c, 10)
	}
	p.follow = newFollower(t, e)
	p.turns(6)

	// Nothing is found after a reset.
	p.reset("")
	p.requireNothingKnown("a reset")
	p.turns(6)
	if !e.SGLang { // SGLang empties no cache while a request runs
		p.resetWithRunning(&wg)
	}

	// In a new life the engine holds nothing.
	p.turns(6)
	e.Restart()
	p.requireNothingKnown("a restart")
	p.turns(10)
}

// resetWithRunning resets the prefix cache while a request runs, which vLLM preempts for that.
func (p *player) resetWithRunning(wg *sync.WaitGroup) {
	running := &conversation{ids: p.random(2 * p.BlockTokens)}
	began := p.counter("vllm:prefix_cache_queries_total")
	p.askBeside(wg, running, p.Tokens/2)
	testkit.WaitFor(p.t, "a request runs", func() bool { return p.counter("vllm:prefix_cache_queries_total") > began })
	p.reset("?reset_running_requests=true")
	wg.Wait()
	p.requireNothingKnown("a reset with a running request")
	p.turn(running, 1)
}

// Fault is something that goes wrong between an engine and its follower.
type Fault struct {
	Begin, End func()
	// Late is a fault during which a new follower begins, and that ends with the first batches that are replayed to it.
	Late bool
	// Lossy is a fault after which the index may know less or more than the engine holds, until a reset.
	Lossy bool
}

// PlayFault follows an engine before, during and after a fault.
func PlayFault(t *testing.T, e Engine, f Fault) {
	p := newPlayer(t, e)
	p.turns(8)
	f.Begin()
	if f.Late {
		p.follow.stop()
		p.follow = newFollower(t, e)
		testkit.WaitFor(t, "the first batches of a replay", func() bool { return p.follow.Status().Batches > 0 })
	}
	switch {
	case f.Lossy:
		for range 4 {
			for _, c := range p.all {
				c.ids = append(c.ids, p.random(30)...)
				p.ask(c, 10)
			}
		}
		f.End()
		p.reset("")
		p.requireNothingKnown("a fault and a reset")
	case f.Late:
		f.End()
	default:
		p.turns(6)
		f.End()
	}
	p.turns(8)
}

// newPlayer returns a player with conversations of which each begins like the first one.
func newPlayer(t *testing.T, e Engine) *player {
	p := &player{Engine: e, t: t, http: harness.NewHTTP(), rng: rand.New(rand.NewPCG(11, 12))}
	t.Cleanup(p.http.CloseIdleConnections)
	p.follow = newFollower(t, e)
	first := p.random(e.Tokens / 20)
	for i := range 6 {
		p.all = append(p.all, &conversation{ids: slices.Clone(first[:len(first)*(i+1)/6])})
	}
	return p
}

// turns sends so many turns of the conversations, which are cut when they are long.
func (p *player) turns(n int) {
	p.t.Helper()
	for i := range n {
		c := p.all[(i*i+i/4)%len(p.all)]
		if len(c.ids) > p.Tokens/3 {
			c.ids = c.ids[:p.Tokens/20]
		}
		computed := max(0, len(c.ids)-1)
		c.ids = append(c.ids, p.random(1+p.rng.IntN(60))...)
		if found := p.turn(c, 1+p.rng.IntN(50)); found > 0 && found >= computed/p.BlockTokens*p.BlockTokens {
			p.whole++
		} else {
			p.partial++
		}
	}
}

// requireNothingKnown checks that the index knows of no conversation.
func (p *player) requireNothingKnown(after string) {
	p.t.Helper()
	p.settle()
	for i, c := range p.all {
		if n := p.known(c); n > 0 {
			p.t.Errorf("after %s, %d tokens of conversation %d are known\n%s", after, n, i, &p.follow.log)
		}
	}
}

// random returns n token ids.
func (p *player) random(n int) []uint32 { return randomIDs(p.rng, n) }

// turn sends a conversation as it is and adds the answer. It returns the number of tokens that the index knew before, which must be the
// number that the engine found, by the answer and by its metrics.
func (p *player) turn(c *conversation, output int) int {
	p.t.Helper()
	p.settle()
	known, length := p.known(c), len(c.ids)
	if p.SGLang {
		found := p.ask(c, output)
		if found != known {
			p.t.Errorf("the index knows %d of %d tokens, the engine finds %d\n%s", known, length, found, &p.follow.log)
		}
		return found
	}
	queries, hits := p.counter("vllm:prefix_cache_queries_total"), p.counter("vllm:prefix_cache_hits_total")
	found := p.ask(c, output)
	testkit.WaitFor(p.t, "the metrics of a request", func() bool {
		return p.counter("vllm:prefix_cache_queries_total") == queries+length
	})
	if counted := p.counter("vllm:prefix_cache_hits_total") - hits; found != known || counted != known {
		p.t.Errorf("the index knows %d of %d tokens, the engine finds %d and counts %d\n%s", known, length, found, counted, &p.follow.log)
	}
	return found
}

// ask sends a conversation, adds the answer and returns the number of tokens that the engine found in its cache.
func (p *player) ask(c *conversation, output int) int {
	p.t.Helper()
	found, err := p.tryAsk(c, output)
	testkit.NoError(p.t, err)
	return found
}

// askBeside sends a conversation on a goroutine of a group; an error fails the test.
func (p *player) askBeside(group *sync.WaitGroup, c *conversation, output int) {
	group.Go(func() {
		if _, err := p.tryAsk(c, output); err != nil {
			p.t.Error(err)
		}
	})
}

func (p *player) tryAsk(c *conversation, output int) (found int, err error) {
	more := map[string]any{}
	if c.salt != "" {
		more["cache_salt"] = c.salt
	}
	ids, answer, err := endpoint{p.t, p.http, p.Model, p.URL}.tryComplete(p.t.Context(), c.ids, output, more)
	c.ids = append(c.ids, ids...)
	return int(answer.Get("usage.prompt_tokens_details.cached_tokens").Int()), err
}

// settle waits until the index has all that the engine has published. If the event of its request was lost, another one shows the gap.
func (p *player) settle() {
	p.t.Helper()
	testkit.WaitFor(p.t, "the events of a request", func() bool {
		c := &conversation{ids: p.random(p.BlockTokens + 1)}
		p.ask(c, 1)
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if p.known(c) == p.BlockTokens {
				return true
			}
		}
		return false
	})
}

// known returns the number of tokens of a conversation that the index knows.
func (p *player) known(c *conversation) int {
	return int(p.follow.match(c.salt, c.ids))
}

// reset resets the prefix cache.
func (p *player) reset(query string) {
	p.t.Helper()
	path := "/reset_prefix_cache" + query
	if p.SGLang {
		path = "/flush_cache"
	}
	answer, err := readPost(p.t.Context(), p.http, p.URL+path, nil)
	testkit.NoError(p.t, err)
	if got := string(answer); !p.SGLang && got != `{"success":true}` {
		p.t.Errorf("reset%s: %s", query, got)
	}
}

func (p *player) counter(name string) int {
	p.t.Helper()
	return int(Counter(p.t, p.http, p.URL, name, ""))
}
