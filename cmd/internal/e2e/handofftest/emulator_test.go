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
