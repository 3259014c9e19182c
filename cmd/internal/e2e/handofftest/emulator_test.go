package handofftest_test

import (
	"math/rand/v2"
	"net"
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

// newPair runs two emulated engines with KV connectors, and front ends for them.
func newPair(t *testing.T, faults emulator.Faults, edit func(*frontend.Config)) (*handofftest.Pair, [2]*emulator.Engine) {
	var urls [2]string
	var engines [2]*emulator.Engine
	for i := range engines {
		engines[i] = testkit.Must(emulator.New(emulator.Config{Model: "tiny", Profile: profile, BlockTokens: 32, Faults: faults,
			KVTransfer: &emulator.KVTransfer{Listener: testkit.Must(net.Listen("tcp", "127.0.0.1:0"))}}))
		t.Cleanup(testkit.Run(t, engines[i].Run))
		urls[i] = serveEngine(t, engines[i])
	}
	return handofftest.New(t, "tiny", urls, edit), engines
}

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

// TestHandoff hands streams over between engines that each keep their own KV: what the client
// reads is the engine's own answer, and the target computes nothing of it.
func TestHandoff(t *testing.T) {
	t.Parallel()
	p, _ := newPair(t, emulator.Faults{}, nil)
	for i, n := range []int{95, 96, 97, 1000, 3000} {
		before := p.Sources(1 - i%2)
		requireMoves(t, p, handofftest.Stream{At: i % 2, Prompt: ids(uint64(i), n), Output: 10_000, After: 50, Moves: []int{20}}, true)
		if got := p.Sources(1 - i%2).Sub(before); got.Computed != 0 || got.Fetched == 0 {
			t.Errorf("%d tokens: the target got %+v", n, got)
		}
	}
}

// TestHandoffOfSeveralTokens hands streams over that get several tokens at once.
func TestHandoffOfSeveralTokens(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]emulator.Faults{"stream interval": {StreamInterval: 8}, "speculation": {DraftTokens: 4}} {
		t.Run(name, func(t *testing.T) {
			p, _ := newPair(t, faults, nil)
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
			p, _ := newPair(t, faults, nil)
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
	var urls [2]string
	for i := range urls {
		e := testkit.Must(emulator.New(emulator.Config{Model: "tiny", Profile: p, BlockTokens: 32, Context: policies.Tokens(room.Context),
			KVTransfer: &emulator.KVTransfer{Listener: testkit.Must(net.Listen("tcp", "127.0.0.1:0"))}}))
		t.Cleanup(testkit.Run(t, e.Run))
		urls[i] = serveEngine(t, e)
	}
	handofftest.PlayOverload(t, "tiny", urls, room, moves, func(c *frontend.Config) { c.HealthInterval = 50 * time.Millisecond })
}

// TestBlockEdges hands streams over at the edges of blocks, through proxies of the engines that hold them there.
func TestBlockEdges(t *testing.T) {
	t.Parallel()
	_, engines := newPair(t, emulator.Faults{}, nil)
	urls := [2]string{serveEngine(t, engines[0]), serveEngine(t, engines[1])}
	handofftest.PlayBlockEdges(t, "tiny", urls, 32, func(c *frontend.Config) { c.HealthInterval = 20 * time.Millisecond })
}

// TestRescues breaks streams inside characters.
func TestRescues(t *testing.T) {
	t.Parallel()
	_, engines := newPair(t, emulator.Faults{}, nil)
	urls := [2]string{serveEngine(t, engines[0]), serveEngine(t, engines[1])}
	handofftest.PlayRescues(t, "tiny", urls, 4, nil)
}
