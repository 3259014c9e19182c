package emulator

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/engine/internal/kvpublisher"
)

// KVEvents configures the KV events of a replica as vLLM's --kv-events-config does: which blocks its
// prefix cache stores and removes, for routers to follow. Zero numbers are vLLM's defaults.
type KVEvents = kvpublisher.Config

// KVEventFaults are faults of the KV events.
type KVEventFaults = kvpublisher.Faults

// ParseKVEvents decodes the JSON of vLLM's --kv-events-config.
func ParseKVEvents(text string) (KVEvents, error) { return kvpublisher.ParseConfig(text) }

// kvEvents collects the events of a step and publishes them. A nil one does nothing.
type kvEvents struct {
	publisher   *kvpublisher.Publisher
	blockTokens int

	// Owned by the loop.
	batch  kvpublisher.Batch
	hashes []kv.Hash
}

var _ batch.CacheObserver = (*kvEvents)(nil)

// newKVEvents returns nil for a config without events.
func newKVEvents(e *Engine) (*kvEvents, error) {
	if e.cfg.KVEvents == nil || !e.cfg.KVEvents.Enabled() {
		return nil, nil
	}
	p, err := kvpublisher.New(*e.cfg.KVEvents, func() KVEventFaults { return e.faults.Load().KVEvents })
	if err != nil {
		return nil, err
	}
	return &kvEvents{publisher: p, blockTokens: e.cfg.BlockTokens}, nil
}

// BlocksStored implements batch.CacheObserver.
func (v *kvEvents) BlocksStored(q *batch.Sequence, first, end int) {
	stored := kvpublisher.Stored{Origin: q.Origin, IDs: q.IDs(first*v.blockTokens, end*v.blockTokens), BlockTokens: v.blockTokens}
	v.hashes = v.hashes[:0]
	for n := first; n < end; n++ {
		v.hashes = append(v.hashes, q.BlockHash(n))
	}
	stored.Hashes = v.hashes
	if first > 0 {
		stored.Parent = q.BlockHash(first - 1)
	}
	v.batch.AddStored(stored)
}

// BlockRemoved implements batch.CacheObserver.
func (v *kvEvents) BlockRemoved(h kv.Hash) { v.batch.AddRemoved(h) }

// CacheCleared implements batch.CacheObserver.
func (v *kvEvents) CacheCleared() { v.batch.AddCleared() }

// publish publishes the events of the step that ends now, and those since the step before.
func (v *kvEvents) publish(ctx context.Context, now time.Time) {
	if v != nil && v.batch.Len() > 0 {
		v.publisher.Publish(ctx, v.batch.Take(float64(now.UnixNano())/1e9))
	}
}

// ResetPrefixCache empties the prefix cache, which fails while requests hold blocks. With preempt, the running
// ones are preempted before. The event comes with the next step. An error means that the engine does not run.
func (e *Engine) ResetPrefixCache(ctx context.Context, preempt bool) (bool, error) {
	var done bool
	err := e.do(ctx, blocktable.AtBoundary, func(s *batch.Scheduler) { done = s.ResetCache(preempt) })
	return done, err
}

// RestartKVEvents is a fault: KV events go on as those of an engine that has been started anew, with the sequence
// number 0, while the prefix cache keeps what it has.
func (e *Engine) RestartKVEvents() {
	if e.events != nil {
		e.events.publisher.Restart()
	}
}

// kvEventSources answers with the config of the KV events, for the only rank.
func (e *Engine) kvEventSources(w http.ResponseWriter, _ *http.Request) {
	if e.events == nil {
		writeJSON(w, http.StatusOK, []byte(`{}`))
		return
	}
	type config KVEvents
	answer := struct {
		config
		ReplayEndpoint *string `json:"replay_endpoint"` // null: none
	}{config: config(e.events.publisher.Config())}
	if answer.config.ReplayEndpoint != "" {
		answer.ReplayEndpoint = &answer.config.ReplayEndpoint
	}
	body, err := json.Marshal(map[string]any{"0": answer})
	if err != nil {
		writeError(w, malformed("%v", err))
		return
	}
	writeJSON(w, http.StatusOK, body)
}

// resetPrefixCache serves an endpoint that vLLM has in its development mode.
func (e *Engine) resetPrefixCache(w http.ResponseWriter, r *http.Request) *apiError {
	preempt := false
	if text := r.URL.Query().Get("reset_running_requests"); text != "" {
		var err error
		if preempt, err = strconv.ParseBool(text); err != nil {
			return invalid("reset_running_requests", "reset_running_requests must be true or false")
		}
	}
	done, err := e.ResetPrefixCache(r.Context(), preempt)
	if err != nil {
		return malformed("%v", err)
	}
	writeJSON(w, http.StatusOK, append(strconv.AppendBool([]byte(`{"success":`), done), '}'))
	return nil
}
