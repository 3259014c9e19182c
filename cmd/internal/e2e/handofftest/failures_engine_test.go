package handofftest

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// blockTokens is the block size of the engines, vLLM's on CPUs.
const blockTokens = 32

// vocabulary is shared by the tests: loading it takes longer than most.
var vocabulary = sync.OnceValues(model.NewVocabulary)

// engine is an emulated engine's place: its process can be killed and started again.
type engine struct {
	t       *testing.T
	scene   *scene
	id      policies.ReplicaID
	address string
	config  func(*emulator.Config)
	// breakFetch, if it is not nil, is called before the engine fetches KV; with an error nothing arrives.
	breakFetch func() error

	*emulator.Engine // the process
	kill             func()

	mu     sync.Mutex
	frozen chan struct{} // closed when it goes on; nil: it runs
}

// newEngine runs the engine of a replica until the test ends.
func newEngine(s *scene, index int, config func(*emulator.Config)) *engine {
	e := &engine{t: s.t, scene: s, config: config, id: replica(index), address: fmt.Sprintf("127.0.0.1:%d", 8000+index)}
	e.start()
	s.t.Cleanup(func() { e.thaw(); e.kill() })
	return e
}

// url returns the engine's base URL.
func (e *engine) url() string { return "http://" + e.address }

// start starts a process.
func (e *engine) start() {
	t := e.t
	t.Helper()
	c := emulator.Config{
		Model: "m", BlockTokens: blockTokens, KVTokens: 16384, Context: 8192, Vocabulary: testkit.Must(vocabulary()),
		Profile:     cost.Profile{Name: "plain", Unit: "seconds", Ranks: 1, D0: 10e-3, D1: 1e-3, D2: 0.01e-3, KVBytesPerToken: 1024, KVTokens: 16384, MaxBatch: 8},
		KVConnector: &connection{e: e, ended: make(chan struct{})},
		Logger:      slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if e.config != nil {
		e.config(&c)
	}
	e.Engine = testkit.Must(emulator.New(c))
	end := testkit.Run(t, e.Run)
	_, stop := e.scene.net.serve(t, e.address, http.HandlerFunc(e.serve))
	e.kill = func() {
		stop()
		end()
	}
}

// freeze stops the whole process, as SIGSTOP does, until thaw.
func (e *engine) freeze() {
	e.mu.Lock()
	e.frozen = make(chan struct{})
	e.mu.Unlock()
	e.Hang()
}

func (e *engine) thaw() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.frozen != nil {
		close(e.frozen)
		e.frozen = nil
	}
	e.Resume()
}

// waitWhileFrozen returns false if the request ends meanwhile.
func (e *engine) waitWhileFrozen(ctx context.Context) bool {
	e.mu.Lock()
	frozen := e.frozen
	e.mu.Unlock()
	if frozen == nil {
		return true
	}
	select {
	case <-frozen:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve passes requests to the process.
func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	if e.waitWhileFrozen(r.Context()) {
		e.Handler().ServeHTTP(w, r)
	}
}
