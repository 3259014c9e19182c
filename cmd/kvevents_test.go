package cmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/policies/prefix"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// lockedIndex is an index that a test may ask while events are applied.
type lockedIndex struct {
	mu sync.Mutex
	*prefix.Index
}

func (x *lockedIndex) Store(e *prefix.Stored)  { x.locked(func() { x.Index.Store(e) }) }
func (x *lockedIndex) Remove(e prefix.Removed) { x.locked(func() { x.Index.Remove(e) }) }
func (x *lockedIndex) Clear()                  { x.locked(x.Index.Clear) }

func (x *lockedIndex) locked(f func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f()
}

// TestKVEvents follows an emulated engine that connects to its migrator: what it has computed
// is held, under its cache salt.
func TestKVEvents(t *testing.T) {
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	profile := cost.Profile{Name: "tiny", Unit: "seconds", D0: 0.0001, D1: 1e-6, D2: 1e-9, D4: 1e-6, KVBytesPerToken: 1024, KVTokens: 72 * 32, MaxBatch: 8, Ranks: 1}
	engine := testkit.Must(emulator.New(emulator.Config{Model: "m", Profile: profile, BlockTokens: 32, KVEvents: &emulator.KVEvents{
		Enable: true, Endpoint: "tcp://" + listener.Addr().String(), Topic: "kv@r1",
	}}))
	x := &lockedIndex{Index: prefix.NewIndex(1000, 1)}
	s := testkit.Must(kvevents.New(kvevents.Config{
		Listen: listener.Addr().String(), Topic: "kv@r1", Model: "m", Index: x,
		ListenTCP: func(context.Context, string) (net.Listener, error) { return listener, nil },
	}))
	testkit.Run(t, s.Run)
	testkit.Run(t, engine.Run)
	testkit.WaitFor(t, "the engine's connection", func() bool { return s.Status().Connected })
	complete := func(salt string, ids []uint32) {
		body := testkit.Must(json.Marshal(map[string]any{"model": "m", "prompt": ids, "max_tokens": 1, "cache_salt": salt}))
		w := httptest.NewRecorder()
		engine.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", bytes.NewReader(body)))
		if w.Code != http.StatusOK {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
	}
	ids := make([]uint32, 100)
	for i := range ids {
		ids[i] = uint32(200 + i)
	}
	// What an engine publishes before it has read the subscription is lost, and computed once only: each
	// try has a salt of its own.
	salt, tries := "", 0
	testkit.WaitFor(t, "three blocks of a prompt", func() (held bool) {
		tries++
		salt = fmt.Sprint("a", tries)
		complete(salt, ids)
		for range 100 {
			x.locked(func() { held = x.Match(prefix.Root("m", "", salt), ids) == 96 })
			if held {
				break
			}
			time.Sleep(time.Millisecond)
		}
		return held
	})
	x.locked(func() {
		if x.Match(prefix.Root("m", "", ""), ids) != 0 || x.Match(prefix.Root("m", "", "b"), ids) != 0 {
			t.Error("the prompt is held under another salt")
		}
	})
}
