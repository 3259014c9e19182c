package emulator

import (
	"context"
	"fmt"
	"net/http"

	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/internal/strictjson"
)

// Faults are what a front end meets at real engines that were started with other options or that
// fail in a way of their own. The zero value is a plain engine. See also Hang, FillKV and
// RestartKVEvents.
type Faults struct {
	// MaxNewTokens bounds the output of every request, whatever its max_tokens (vLLM's
	// max_new_tokens of --override-generation-config). 0 means that only the context does.
	MaxNewTokens int `json:"max_new_tokens"`
	// StreamInterval is the number of tokens per chunk after the first one (--stream-interval).
	// 0 means 1.
	StreamInterval int `json:"stream_interval"`
	// DraftTokens is the maximum number of tokens that arrive together with another, as with
	// speculative decoding: every chunk has 1 to 1 + DraftTokens of them.
	DraftTokens int `json:"draft_tokens"`
	// NoPromptDetails leaves prompt_tokens_details out of the usage, as without
	// --enable-prompt-tokens-details.
	NoPromptDetails bool `json:"no_prompt_details"`
	// NoTransferParams answers handoff legs with null, as connectors do that keep nothing.
	NoTransferParams bool `json:"no_transfer_params"`
	// TransferTokens is added to the remote_num_tokens of answers to handoff legs, as of engines
	// that shorten a prompt or compute more than it.
	TransferTokens int `json:"transfer_tokens"`
	// KVEvents are the faults of Config.KVEvents.
	KVEvents KVEventFaults `json:"kv_events"`
}

// maxChunk bounds the tokens of one chunk.
const maxChunk = 1024

func (f Faults) validate() error {
	switch {
	case f.MaxNewTokens < 0:
		return fmt.Errorf("MaxNewTokens: must not be negative, not %d", f.MaxNewTokens)
	case f.StreamInterval < 0 || f.StreamInterval > maxChunk:
		return fmt.Errorf("StreamInterval: must be 0 to %d, not %d", maxChunk, f.StreamInterval)
	case f.DraftTokens < 0 || f.DraftTokens >= maxChunk:
		return fmt.Errorf("DraftTokens: must be 0 to %d, not %d", maxChunk-1, f.DraftTokens)
	}
	return f.KVEvents.Validate()
}

// chunkSize returns after how many tokens the next chunk is due, which ends with this one or with a
// later token.
func (f *Faults) chunkSize(first bool, t model.Token) int {
	size := max(1, f.StreamInterval)
	if first {
		size = 1
	}
	if f.DraftTokens > 0 {
		size += int(t) % (f.DraftTokens + 1)
	}
	return size
}

// SetFaults sets the faults of the requests that arrive from now on.
func (e *Engine) SetFaults(f Faults) error {
	if err := f.validate(); err != nil {
		return err
	}
	e.faults.Store(&f)
	return nil
}

// FillKV makes the KV cache full: all running requests but the oldest ones, as many as keep, are
// preempted, and wait with all others until Resume.
func (e *Engine) FillKV(ctx context.Context, keep int) error {
	return e.do(ctx, blocktable.AtBoundary, func(s *batch.Scheduler) { s.SetFull(keep) })
}

// faultRoutes let the tests and demos of other processes set a replica's faults. A front end serves
// none of these paths to clients.
func (e *Engine) faultRoutes(handle func(method, path string, h http.HandlerFunc)) {
	handle("POST", "/emulator/hang", func(http.ResponseWriter, *http.Request) { e.Hang() })
	handle("POST", "/emulator/resume", func(http.ResponseWriter, *http.Request) { e.Resume() })
	handle("POST", "/emulator/faults", handleFault(func(_ context.Context, f Faults) error { return e.SetFaults(f) }))
	handle("POST", "/emulator/restart-kv-events", func(http.ResponseWriter, *http.Request) { e.RestartKVEvents() })
	handle("POST", "/emulator/full", handleFault(func(ctx context.Context, full struct{ Keep int }) error { return e.FillKV(ctx, full.Keep) }))
}

// handleFault decodes a body, which has no fields but those of a T, and sets what it says.
func handleFault[T any](set func(context.Context, T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, bad := readBody(w, r)
		if bad != nil {
			writeError(w, bad)
			return
		}
		var v T
		err := strictjson.Unmarshal(body, &v)
		if err == nil {
			err = set(r.Context(), v)
		}
		if err != nil {
			writeError(w, malformed("%v", err))
		}
	}
}
