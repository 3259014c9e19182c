package handofftest

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// PlayBlockEdges hands streams over with one id less than full blocks, with full blocks, and with one
// more: in both directions, completions and chats. The engines are base URLs, with blocks of so many
// tokens. edit, if not nil, edits the front ends' configuration. A move that was none, or none by
// handoff, is repeated, because the host may be busy.
func PlayBlockEdges(t *testing.T, model string, engines [2]string, block int, edit func(*frontend.Config)) {
	t.Helper()
	p, proxies := NewProxied(t, model, engines, edit)
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 12 {
		at, residue, chat := i%2, []int{block - 1, 0, 1}[i/2%3], i >= 6
		name := fmt.Sprintf("%d ids over full blocks, from r%d, chat %v", residue, at, chat)
		for attempt := 1; ; attempt++ {
			prompt := randomIDs(rng, 90+rng.IntN(300))
			s := Stream{At: at, Prompt: prompt, Output: 8 * block, Moves: []int{1}, After: 2 * block,
				Gate: NewGate(func(ids int) bool { return ids%block == residue })}
			if chat {
				s.Prompt, s.Text = nil, fmt.Sprint(prompt[:50])
			}
			before, fetches := p.Sources(1-at), len(proxies[1-at].Fetched())
			proxies[at].SetHooks(Hooks{Gate: s.Gate})
			moves := p.Play(s)
			fetched := proxies[1-at].Fetched()[fetches:]
			if len(moves) == 1 && moves[0].Err == nil && moves[0].Handoff && len(fetched) > 0 { // else it was rescued before
				if n := fetched[len(fetched)-1]; n%block != residue {
					t.Errorf("%s: the target's leg has %d ids\n%s", name, n, &p.Log)
				}
				got := testkit.WaitForValue(t, "the target's counters", func() Sources { return p.Sources(1 - at).Sub(before) },
					func(s Sources) bool { return s.Computed+s.Cached+s.Fetched >= float64(moves[0].Length) })
				if got.Computed != 0 || got.Fetched == 0 {
					t.Errorf("%s: the target got %+v", name, got)
				}
				break
			}
			if attempt == 5 {
				t.Fatalf("%s: %+v\n%s", name, moves, &p.Log)
			}
		}
	}
}
