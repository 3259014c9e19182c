package handofftest

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// Room is what an engine has room for.
type Room struct {
	KV, Context, Batch int // tokens, tokens of a sequence, sequences
}

// overload is other requests at the holder's engine while a stream moves away from it.
type overload struct {
	name        string
	long, queue bool // requests that fill the KV cache, and more requests than fit
	unnoticed   bool // the stream moves as soon as the engine has them, which the front end does not know yet
	prompt      int  // of the stream, in tokens; 0: streamPrompt
}

var overloads = []overload{
	{name: "none"},
	{name: "a queue", queue: true},
	{name: "KV over 95 %", long: true},
	{name: "a queue and KV over 95 %", long: true, queue: true},
	{name: "a queue, since a moment ago", queue: true, unnoticed: true},
	{name: "a queue, since a moment ago; a stream of 100 tokens", queue: true, unnoticed: true, prompt: 100},
	{name: "a queue and KV over 95 %, since a moment ago", long: true, queue: true, unnoticed: true},
}

// crowd is the other requests of one stream.
type crowd struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup
}

// overloadedPair is two front ends whose streams move from the first to the second one.
type overloadedPair struct {
	*Pair
	room Room
	rng  *rand.Rand
	kept atomic.Int64 // requests for KV that the holder's engine was sent
}

const (
	streamPrompt = 1000 // tokens of the prompt of a stream that moves
	queued       = 8    // requests that wait
)

// PlayOverload moves streams away from an overloaded engine, as configured and by reprompt only, and logs a table of
// the ways and stalls. An engine that its front end knows to be overloaded is asked for no KV, so that the stream
// does just what it does without handoffs, and every client reads the right ids. The engines are base URLs, have
// connectors and are used by nothing else. moves is how many for each row; edit, if not nil, edits the front ends'
// configuration.
func PlayOverload(t *testing.T, model string, engines [2]string, room Room, moves int, edit func(*frontend.Config)) {
	t.Helper()
	stalls := map[string]map[bool][]Moved{} // by overload, and whether handoffs are allowed
	asked := map[string]int64{}
	for _, handoffs := range []bool{true, false} {
		t.Run(map[bool]string{true: "as configured", false: "by reprompt"}[handoffs], func(t *testing.T) {
			p := newOverloadedPair(t, model, engines, room, handoffs, edit)
			for _, o := range overloads {
				if stalls[o.name] == nil {
					stalls[o.name] = map[bool][]Moved{}
				}
				before := p.kept.Load()
				for range moves {
					m := p.play(o)
					for attempt := 1; m.Err != nil && attempt < 5; attempt++ { // the host may be busy
						t.Logf("%s: %+v", o.name, m)
						m = p.play(o)
					}
					stalls[o.name][handoffs] = append(stalls[o.name][handoffs], m)
					known := (o.long || o.queue) && !o.unnoticed
					if m.Err != nil || m.Handoff && (known || !handoffs) || !m.Handoff && handoffs && !o.long && !o.queue {
						t.Errorf("%s: %+v\n%s", o.name, m, &p.Log)
					}
					if n := p.kept.Load() - before; n > 0 && (known || !handoffs) {
						t.Errorf("%s: the holder's engine was asked for KV %d times\n%s", o.name, n, &p.Log)
					}
				}
				if handoffs {
					asked[o.name] = p.kept.Load() - before
				}
			}
		})
	}
	table := report.Table{Header: []string{"load of the holder's engine", "moves by handoff", "by reprompt", "requests for KV", "stall p50", "max", "by reprompt only: stall p50", "max"}, Left: 1}
	for _, o := range overloads {
		row := []string{o.name, "0", "0", fmt.Sprint(asked[o.name])}
		ways := map[bool]int{}
		for _, m := range stalls[o.name][true] {
			ways[m.Handoff]++
		}
		row[1], row[2] = fmt.Sprint(ways[true]), fmt.Sprint(ways[false])
		for _, handoffs := range []bool{true, false} {
			var all []time.Duration
			for _, m := range stalls[o.name][handoffs] {
				all = append(all, m.Stall.Round(time.Millisecond))
			}
			slices.Sort(all)
			if len(all) == 0 {
				return // a move has failed, which was said
			}
			row = append(row, fmt.Sprint(all[len(all)/2]), fmt.Sprint(all[len(all)-1]))
		}
		table.Rows = append(table.Rows, row)
	}
	var text strings.Builder
	testkit.NoError(t, table.Markdown(&text))
	t.Logf("\n%s", &text)
}

func newOverloadedPair(t *testing.T, model string, engines [2]string, room Room, handoffs bool, edit func(*frontend.Config)) *overloadedPair {
	p := &overloadedPair{room: room, rng: rand.New(rand.NewPCG(9, 10))}
	holder := NewProxy(t, engines[0], Hooks{Keep: func() { p.kept.Add(1) }})
	p.Pair = New(t, model, engines, func(c *frontend.Config) {
		if edit != nil {
			edit(c)
		}
		c.Handoff = handoffs
		if c.Replica == replica(0) {
			c.Engine = holder.URL
		}
	})
	return p
}

// play moves one stream under an overload, which ends with it.
func (p *overloadedPair) play(o overload) Moved {
	var c *crowd
	testkit.WaitFor(p.t, "idle engines", func() bool {
		return p.Counter(0, "vllm:num_requests_running", "")+p.Counter(0, "vllm:num_requests_waiting", "")+p.Counter(1, "vllm:num_requests_running", "") == 0 && !p.busy()
	})
	n := cmp.Or(o.prompt, streamPrompt)
	s := Stream{Prompt: randomIDs(p.rng, n), Output: p.room.Context - n - 1, Moves: []int{20}, After: 40, AskOther: true}
	s.Ready = func() bool {
		if c == nil {
			c = p.send(o)
		}
		if o.unnoticed {
			return p.engineHas(o)
		}
		return p.frontEndKnows(o)
	}
	moves := p.Play(s)
	if c != nil {
		c.cancel()
		c.ended.Wait()
	}
	if len(moves) != 1 {
		p.t.Fatalf("%s: %d moves\n%s", o.name, len(moves), &p.Log)
	}
	return moves[0]
}

// frontEndKnows reports whether the holder's front end knows its engine as it is under an overload.
func (p *overloadedPair) frontEndKnows(o overload) bool {
	l := p.Front[0].EngineLoad()
	if !o.long && !o.queue {
		return !p.busy()
	}
	full := l.KVUsed > l.Capacity/100*95
	return (!o.queue || l.Queued > 0) && (!o.long || full)
}

// engineHas reports whether the holder's engine is overloaded by its own metrics.
func (p *overloadedPair) engineHas(o overload) bool {
	return (!o.queue || p.Counter(0, "vllm:num_requests_waiting", "") > 0) && (!o.long || p.Counter(0, "vllm:kv_cache_usage_perc", "") > 0.95)
}

// send sends the holder's engine the requests of an overload. They end when the crowd is cancelled.
func (p *overloadedPair) send(o overload) *crowd {
	ctx, cancel := context.WithCancel(p.t.Context())
	c := &crowd{cancel: cancel}
	n, prompt := 0, 0
	switch most := p.room.Batch - 1; { // beside the stream that moves
	case o.long: // many, so that the cache stays nearly full when the engine preempts one of them
		n, prompt = most, (p.room.KV*97/100-streamPrompt)/most
		if o.queue {
			n += queued
		}
	case o.queue:
		n, prompt = most+queued, 32
	}
	for range n {
		ids := randomIDs(p.rng, prompt)
		c.ended.Go(func() {
			_, _, _ = p.endpoint(p.Engines[0]).tryComplete(ctx, ids, p.room.Context-prompt-1, nil) // until it is cancelled
		})
	}
	return c
}
