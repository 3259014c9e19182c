package frontend

import (
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// estimateCached estimates from the prompts sent before how much of a prompt the engine
// found in its cache. That counts until the engine has reported cached tokens once:
// engines leave the number out when it is 0, and stock ones always do.
func (r *localLeg) estimateCached(c *openai.Chunk) {
	srv := r.server
	if srv.reportsCached.Load() {
		return
	}
	ids, err := c.AppendPromptIDs(nil)
	if err != nil {
		return // whoever reads the event finds out
	}
	known := srv.prefixes.Add(r.request.Model, ids)
	r.work.SetCached(known)
	if known > 0 {
		srv.estimatesCached.Store(true)
	}
}

// setUsage reports the engine's own final counts to the load tracker.
func (r *localLeg) setUsage(u openai.Usage) {
	srv := r.server
	srv.engineState.notePromptDetails(u.HasCached)
	if u.HasCached && u.Cached > 0 {
		srv.reportsCached.Store(true)
		srv.estimatesCached.Store(false)
	}
	cached := policies.Tokens(u.Cached)
	if !u.HasCached && !srv.reportsCached.Load() {
		cached = r.work.Counts().Cached
		if cached > 0 {
			srv.cachedLog.Do(func() {
				srv.log.Warn("engine reports no cached tokens; its prefill is estimated from the prompts it got (vLLM reports them with --enable-prompt-tokens-details)")
			})
		}
	}
	r.work.SetUsage(policies.Tokens(u.Prompt), policies.Tokens(u.Output), cached)
}

// forgetCached begins the estimate anew, for an engine that has just become ready: its cache
// is empty, and it may report cached tokens where the one before did not, or the reverse.
func (srv *Server) forgetCached() {
	srv.prefixes.Clear()
	srv.promptTexts.Clear()
	srv.reportsCached.Store(false)
	srv.estimatesCached.Store(false)
}
