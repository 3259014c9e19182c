package handofftest

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// otherHolds says that the other replica of a pair holds all of every prompt.
type otherHolds struct {
	pair **Pair
	own  policies.ReplicaID
}

// LongestPrefix implements frontend.PrefixHolders.
func (o otherHolds) LongestPrefix(steps []prefix.Step) (policies.Target, policies.Tokens) {
	p, i := *o.pair, 0
	if o.own == replica(0) {
		i = 1
	}
	return p.target(i), steps[len(steps)-1].Tokens
}

// PlayPrefixPulls has conversations whose second turn is sent to the other replica: its engine fetches the KV of the
// first turn before it begins, and answers as the first engine does. A prefix that the first engine does not have is
// computed.
func PlayPrefixPulls(t *testing.T, model string, engines [2]string, edit func(*frontend.Config)) {
	var p *Pair
	p = New(t, model, engines, func(c *frontend.Config) {
		if edit != nil {
			edit(c)
		}
		c.Overload.Off = true
		c.Cost = policies.Cost{D0: 1, D2: 0.1} // slow engines: a pull on a busy host has half a minute
		c.PrefixPull = &frontend.PrefixPull{Holders: otherHolds{&p, c.Replica}, TokenBytes: 1,
			Link: func(policies.ReplicaID) links.Path { return links.Path{Rate: links.Gigabyte} }}
	})
	complete := func(url string, prompt []uint32) []uint32 {
		ids, _ := p.endpoint(url).complete(prompt, 20, nil)
		return ids
	}
	rng := rand.New(rand.NewPCG(8, 9))
	for i, n := range []int{530, 1100, 2100, 1536} {
		at := i % 2
		turn := randomIDs(rng, n)
		turn = append(turn, complete(p.Engines[at], turn)...) // its front end would pull
		turn = append(turn, randomIDs(rng, 40)...)
		before, pulls := p.Sources(1-at), p.Front[1-at].PrefixPulls()
		got := complete(p.clients[1-at], turn)
		held := (len(turn) / 512) * 512
		sources := testkit.WaitForValue(t, "the counters of the engine that fetches", func() Sources { return p.Sources(1 - at).Sub(before) },
			func(s Sources) bool { return s.Computed+s.Cached+s.Fetched >= float64(held+len(turn)) })
		if want := complete(p.Engines[at], turn); !slices.Equal(got, want) || len(got) != 20 {
			t.Errorf("%d tokens: after a pull %v, without %v", len(turn), got, want)
		}
		now := p.Front[1-at].PrefixPulls()
		t.Logf("%d tokens, of which %d are held: %+v in %.3f s", len(turn), held, sources, now.Seconds-pulls.Seconds)
		if now.Pulled != pulls.Pulled+1 || now.Tokens != pulls.Tokens+uint64(held) || sources.Fetched < float64(held-1) || sources.Computed > float64(len(turn)-held+64) {
			t.Errorf("%d tokens, of which %d are held: %+v, pulls %+v\n%s", len(turn), held, sources, now, &p.Log)
		}
	}
}
