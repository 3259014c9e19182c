package frontend

import (
	"sync"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// idBuffers keeps memory for the ids of prompts that are read and not kept.
var idBuffers = sync.Pool{New: func() any { return new([]uint32) }}

// recordPrompt records that the engine has computed a prompt. From the prompts before it
// estimates how much of it the engine found in its cache. That counts until the engine has
// reported cached tokens once: engines leave the number out when it is 0, and stock ones
// always do.
func (r *localLeg) recordPrompt(c *openai.Chunk) {
	srv := r.server
	buffer := idBuffers.Get().(*[]uint32)
	defer idBuffers.Put(buffer)
	ids, err := c.AppendPromptIDs((*buffer)[:0])
	if err != nil {
		return // whoever reads the event finds out
	}
	*buffer = ids
	known := srv.prefixes.Begin(&r.chain, r.root, ids)
	if srv.reportsCached.Load() {
		return
	}
	r.work.SetCached(known)
	if known > 0 {
		srv.estimatesCached.Store(true)
	}
}

// recordOutput records that the engine holds what it has generated. Only the output of a
// request that has one answer continues its prompt.
func (r *localLeg) recordOutput(c *openai.Chunk) {
	if r.request.Features.Has(policies.Choices | policies.Prompts) {
		return
	}
	var few [16]uint32
	if ids, err := c.AppendIDs(few[:0]); err == nil {
		r.server.prefixes.Extend(&r.chain, ids...)
	}
}

// setUsage reports the engine's own final counts to the load tracker.
func (r *localLeg) setUsage(u openai.Usage) {
	srv := r.server
	srv.engineFacts.notePromptDetails(u.HasCached)
	if u.HasCached && u.Cached > 0 {
		srv.reportsCached.Store(true)
		srv.estimatesCached.Store(false)
	}
	cached := policies.Tokens(u.Cached)
	if !u.HasCached && !srv.reportsCached.Load() {
		cached = r.work.Counts().Cached
		if cached > 0 {
			srv.cachedLog.Do(func() {
				srv.log.Warn("engine reports no cached tokens; its prefill is estimated from the prompts it got; start the engine so that usage has the details of the prompt")
			})
		}
	}
	r.work.SetUsage(policies.Tokens(u.Prompt), policies.Tokens(u.Output), cached)
}

// forgetCached begins the estimate anew, for an engine that has just become ready: its cache
// is empty, and it may report cached tokens where the one before did not, or the reverse.
func (srv *Server) forgetCached() {
	srv.prefixes.Forget()
	srv.texts.Forget()
	srv.tokenizer.forget()
	srv.reportsCached.Store(false)
	srv.estimatesCached.Store(false)
}
