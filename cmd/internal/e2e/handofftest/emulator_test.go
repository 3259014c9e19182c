package handofftest_test

import (
	"math/rand/v2"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// profile is an engine that takes a millisecond for a token.
var profile = cost.Profile{Name: "tiny", Unit: "seconds", D0: 0.001, D1: 1e-6, D2: 1e-9, D3: 0, D4: 1e-6, KVBytesPerToken: 1024, KVTokens: 1 << 15, MaxBatch: 8, Ranks: 1}

// serveEngine serves an engine until the test ends, and returns its base URL.
func serveEngine(t *testing.T, e *emulator.Engine) string {
	s := httptest.NewServer(e.Handler())
	t.Cleanup(s.Close)
	return s.URL
}

// ids returns n token ids that no other seed has.
func ids(seed uint64, n int) []uint32 {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make([]uint32, n)
	for i := range out {
		out[i] = 1000 + rng.Uint32N(20000)
	}
	return out
}

// requireMoves plays a stream, all of whose moves must be done, by handoff or not.
func requireMoves(t *testing.T, p *handofftest.Pair, s handofftest.Stream, handoff bool) {
	t.Helper()
	moves := p.Play(s)
	if len(moves) != len(s.Moves) {
		t.Errorf("%d of %d moves\n%s", len(moves), len(s.Moves), &p.Log)
	}
	for _, m := range moves {
		if m.Err != nil || m.Handoff != handoff {
			t.Errorf("a prompt of %d: %+v\n%s", len(s.Prompt), m, &p.Log)
		}
	}
}

// TestHandoffOfSeveralTokens hands streams over that get several tokens at once.
func TestHandoffOfSeveralTokens(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]emulator.Faults{"stream interval": {StreamInterval: 8}, "speculation": {DraftTokens: 4}} {
		t.Run(name, func(t *testing.T) {
			p, _, _ := newConnectedPair(t, emulator.Config{Faults: faults}, 0)
			for i := range 2 {
				requireMoves(t, p, handofftest.Stream{At: i % 2, Prompt: ids(uint64(i), 100), Output: 10_000, After: 50, Moves: []int{20, 120}}, true)
			}
		})
	}
}

// TestHandoffFaults gives the holder's engine the faults that a front end finds out from its
// answers: streams move by reprompt, and are right.
func TestHandoffFaults(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]emulator.Faults{"null": {NoTransferParams: true}, "one token more": {TransferTokens: 1}, "one token less": {TransferTokens: -1}} {
		t.Run(name, func(t *testing.T) {
			p, _, _ := newConnectedPair(t, emulator.Config{Faults: faults}, 0)
			for i, n := range []int{100, 1000} {
				requireMoves(t, p, handofftest.Stream{At: i % 2, Prompt: ids(uint64(i), n), Output: 10_000, After: 50, Moves: []int{20}}, false)
			}
		})
	}
}

// TestOverload moves streams away from overloaded engines.
func TestOverload(t *testing.T) {
	testkit.SkipSlow(t)
	t.Parallel()
	const moves = 3
	room := handofftest.Room{KV: 1 << 16, Context: 1 << 14, Batch: 32}
	p := profile
	p.D0, p.D2, p.KVTokens, p.MaxBatch = 0.005, 2e-5, policies.Tokens(room.KV), room.Batch
	engines, c, _ := newConnectedPair(t, emulator.Config{Profile: p, Context: policies.Tokens(room.Context)}, 0)
	handofftest.PlayOverload(t, "tiny", engines.Engines, room, moves, func(f *frontend.Config) { c.Edit(f); f.HealthInterval = 50 * time.Millisecond })
}

// TestRescues breaks streams inside characters.
func TestRescues(t *testing.T) {
	t.Parallel()
	_, urls, _ := startSocketEngines(t, emulator.Config{}, 0)
	handofftest.PlayRescues(t, "tiny", urls, 4, nil)
}
