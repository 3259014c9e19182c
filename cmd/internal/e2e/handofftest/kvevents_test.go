package handofftest_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// eventProfile is an engine that takes a tenth of a millisecond for a token.
var eventProfile = cost.Profile{Name: "tiny", Unit: "seconds", D0: 0.0001, D1: 1e-6, D2: 1e-9, D4: 1e-6, KVBytesPerToken: 1024, KVTokens: 72 * 32, MaxBatch: 8, Ranks: 1}

// emulated is an emulated engine that can be started anew at its address.
type emulated struct {
	handofftest.Engine
	current atomic.Pointer[emulator.Engine]
}

// newEngine runs an engine that connects to its subscriber, or one that listens.
func newEngine(t *testing.T, edit func(*emulator.KVEvents)) *emulated {
	addresses := testkit.Addresses(t, 2)
	events := emulator.KVEvents{Enable: true, Endpoint: "tcp://" + addresses[0], ReplayEndpoint: "tcp://" + addresses[1], Topic: "kv@r0"}
	if edit != nil {
		edit(&events)
	}
	e := &emulated{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.current.Load().Handler().ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	var stop func()
	run := func() {
		next := testkit.Must(emulator.New(emulator.Config{Model: "tiny", Profile: eventProfile, BlockTokens: 32, KVEvents: &events}))
		e.current.Store(next)
		stop = testkit.Run(t, next.Run)
	}
	run()
	e.Engine = handofftest.Engine{
		URL: server.URL, Model: "tiny", Endpoint: events.Endpoint, ReplayEndpoint: events.ReplayEndpoint, Topic: events.Topic, BlockTokens: 32, Tokens: 72 * 32,
		Restart: func() {
			stop()
			run()
		},
	}
	return e
}

// TestEmulated follows the events of emulated engines that connect to their subscriber, and that listen.
func TestEmulated(t *testing.T) {
	t.Run("connects", func(t *testing.T) {
		t.Parallel()
		handofftest.Play(t, newEngine(t, nil).Engine)
	})
	t.Run("listens", func(t *testing.T) {
		t.Parallel()
		handofftest.Play(t, newEngine(t, func(c *emulator.KVEvents) {
			c.Endpoint = "tcp://*" + c.Endpoint[len("tcp://127.0.0.1"):]
		}).Engine)
	})
}

// TestFaults follows an engine whose batches are lost, repeated, late or garbled, or whose replays are cut short or do
// not exist.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		faults emulator.KVEventFaults
		buffer int
		slow   bool // the follower waits ten seconds for the rest of a replay
		handofftest.Fault
	}{
		{name: "lost batches", faults: emulator.KVEventFaults{DropEvery: 2}},
		// A number that comes again may be of a new life.
		{name: "repeated batches", faults: emulator.KVEventFaults{DuplicateEvery: 5}},
		{name: "late batches", faults: emulator.KVEventFaults{DelaySeconds: 0.05}},
		{name: "slow publisher", faults: emulator.KVEventFaults{PauseSeconds: 0.02}},
		{name: "replays cut short", slow: true, faults: emulator.KVEventFaults{ReplayBatches: 5}, Fault: handofftest.Fault{Late: true}},
		{name: "garbage", faults: emulator.KVEventFaults{GarbageEvery: 3}, Fault: handofftest.Fault{Lossy: true}},
		{name: "short buffer", buffer: 3, Fault: handofftest.Fault{Late: true, Lossy: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.slow {
				testkit.SkipSlow(t)
			}
			t.Parallel()
			e := newEngine(t, func(c *emulator.KVEvents) { c.BufferSteps = tc.buffer })
			tc.Begin = func() { testkit.NoError(t, e.current.Load().SetFaults(emulator.Faults{KVEvents: tc.faults})) }
			tc.End = func() { testkit.NoError(t, e.current.Load().SetFaults(emulator.Faults{})) }
			handofftest.PlayFault(t, e.Engine, tc.Fault)
		})
	}
	t.Run("no replays", func(t *testing.T) {
		t.Parallel()
		e := newEngine(t, func(c *emulator.KVEvents) { c.ReplayEndpoint = "" })
		handofftest.PlayFault(t, e.Engine, handofftest.Fault{Begin: func() {}, End: func() {}})
	})
	t.Run("numbers from 0 on", func(t *testing.T) {
		t.Parallel()
		e := newEngine(t, nil)
		handofftest.PlayFault(t, e.Engine, handofftest.Fault{Begin: func() { e.current.Load().RestartKVEvents() }, End: func() {}, Lossy: true})
	})
}
