package handofftest

import (
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvport"
)

// PlayConnectorFaults breaks the transfers between two engines with Cascade's connectors: the engine that continues a
// stream computes what did not arrive, and the client reads the right answer, by the same move. The engines are base
// URLs, with sockets in directories to which nothing else connects. edit, if not nil, edits the front ends'
// configuration.
func PlayConnectorFaults(t *testing.T, model string, engines, dirs [2]string, edit func(*frontend.Config)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 8))
	const prompt = 1000
	for _, fault := range []struct {
		name  string
		lease time.Duration
		begin func(*testing.T, *Connectors)
		check func(holder, target kvport.Stats, got Sources) bool
	}{
		{"a wrong byte", 0, func(_ *testing.T, c *Connectors) { c.FlipBytes.Store(1) },
			func(_, target kvport.Stats, got Sources) bool {
				return target.Corrupt == 1 && target.Fetched > 0 && target.Failed == 0 && got.Computed == 0
			}},
		{"wrong bytes again and again", 0, func(_ *testing.T, c *Connectors) { c.FlipBytes.Store(1 << 30) },
			func(_, target kvport.Stats, got Sources) bool {
				return target.Fetched == 0 && target.Failed > 0 && got.Computed >= prompt
			}},
		// The engine copies the KV of other prompts into the slots that the lease has freed.
		{"the lease ends, and the blocks belong to others", 50 * time.Millisecond, func(t *testing.T, c *Connectors) {
			expired := c.Clients[0].Stats().Expired
			c.BeforeFetch = func() error { // one after the other
				expired++
				if err := testkit.WaitUntil("the end of the lease", func() bool { return c.Clients[0].Stats().Expired >= expired }); err != nil {
					return err
				}
				expired++ // that of the next lease, too
				_, _, err := endpoint{t, http.DefaultClient, model, engines[0]}.tryComplete(t.Context(), randomIDs(rng, prompt), 1, toKeep)
				return err
			}
		}, func(holder, target kvport.Stats, got Sources) bool {
			return holder.Taken == 0 && target.Fetched == 0 && target.Failed > 0 && got.Computed >= prompt
		}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			var log testkit.Log
			c := NewConnectors(t, dirs, fault.lease, &log)
			p := New(t, model, engines, func(f *frontend.Config) {
				c.Edit(f)
				if edit != nil {
					edit(f)
				}
			})
			for attempt := 1; ; attempt++ { // the host may be busy, or the stream over
				fault.begin(t, c)
				before := p.Sources(1)
				holder, target := c.Clients[0].Stats(), c.Clients[1].Stats()
				moves := p.Play(Stream{Prompt: randomIDs(rng, prompt), Output: 3000, After: 50, Moves: []int{20}})
				holder, target = sub(c.Clients[0].Stats(), holder), sub(c.Clients[1].Stats(), target)
				got := p.Sources(1).Sub(before)
				if len(moves) == 1 && moves[0].Err == nil && moves[0].Handoff {
					if !fault.check(holder, target, got) {
						t.Errorf("%+v: the holder's connector %+v, the target's %+v, the target got %+v\n%s\n%s", moves, holder, target, got, &log, &p.Log)
					}
					return
				}
				if attempt == 5 {
					t.Fatalf("%+v\n%s\n%s", moves, &log, &p.Log)
				}
			}
		})
	}
}

// sub returns what has been counted since before.
func sub(now, before kvport.Stats) kvport.Stats {
	return kvport.Stats{
		Offered: now.Offered - before.Offered, Taken: now.Taken - before.Taken, Expired: now.Expired - before.Expired,
		Fetched: now.Fetched - before.Fetched, Failed: now.Failed - before.Failed, Corrupt: now.Corrupt - before.Corrupt, Sessions: now.Sessions - before.Sessions,
	}
}
