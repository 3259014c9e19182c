package frontend

import (
	"cmp"
	"context"
	"net/http"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// knownPrompt is what is known of a request's prompt before its engine has computed it.
type knownPrompt struct {
	root   prefix.Hash     // that its ids extend
	text   prefix.Text     // its text; the zero value if it is ids
	steps  []prefix.Step   // the first ones; none: unknown
	known  policies.Tokens // how many of its first tokens are known
	length policies.Tokens // about how many it has, by what is known of its text; 0: unknown
	ids    []uint32        // all of them; nil: unknown
	cached policies.Tokens // how many of its first tokens the own engine holds
}

// promptRoot returns the root of the prompts for a model or adapter with a cache salt. It is the
// same in all front ends of the model.
func (srv *Server) promptRoot(model, salt string) prefix.Hash {
	adapter := ""
	if srv.engineFacts.isAdapter(model) {
		adapter = model
	}
	return prefix.Root(srv.cfg.Model, adapter, salt)
}

// PrefixSummary returns which prompts the engine holds, as migrator/market sends it to peers,
// and a number above 0 that is another one when that is; no bytes if that number is known.
func (srv *Server) PrefixSummary(known uint64) (encoded []byte, version uint64) {
	return srv.prefixes.Summary(known)
}

// PrefixStatus is what a server knows of the prompts that its engine holds.
type PrefixStatus struct {
	loadtracker.PrefixStatus
	// Tokenized counts the prompts whose token ids the engine has returned before it computed them,
	// TokenizeFailed those that it refused or returned too late, and TokenizeSkipped those for
	// which it was not called: they are too long, or it is busy, or has failed several times
	// shortly before.
	Tokenized, TokenizeFailed, TokenizeSkipped uint64
}

// PrefixStatus returns what is known of the prompts that the engine holds.
func (srv *Server) PrefixStatus() PrefixStatus {
	t := srv.tokenizer
	return PrefixStatus{PrefixStatus: srv.prefixes.Status(),
		Tokenized: t.answered.Load(), TokenizeFailed: t.failures.Load(), TokenizeSkipped: t.skipped.Load()}
}

// readPrompt finds out which tokens a request's prompt begins with, and how many of them the own
// engine holds. If fewer than wanted are known it asks the engine, which takes Config.TokenizeTimeout at most;
// header is what the engine may see of the client's.
func (srv *Server) readPrompt(ctx context.Context, req *openai.Request, header http.Header, wanted policies.Tokens) (p knownPrompt) {
	p.root = srv.promptRoot(req.Model, req.CacheSalt)
	if srv.cfg.Placer == nil && srv.cfg.PrefixPull == nil {
		return p
	}
	if ids := req.PromptIDs(); ids != nil {
		srv.setPromptIDs(&p, ids)
		return p
	}
	if srv.cfg.Placer == nil {
		return p
	}
	p.text = prefix.NewText(p.root, req.Prompt())
	holders := srv.cfg.Placer.HasHolders()
	if !holders && !srv.cfg.Placer.Prefills() {
		return p
	}
	p.steps, p.known, p.length = srv.texts.Find(p.text)
	if holders && p.known < wanted && srv.engineFacts.serves(req.Model) {
		if ids, err := srv.tokenize(ctx, req, header); err == nil {
			srv.setPromptIDs(&p, ids)
			srv.texts.Learn(p.text, p.root, ids)
			return p
		}
	}
	p.cached = srv.prefixes.MatchSteps(p.steps)
	return p
}

// refineEstimate replaces a request's estimated length by what is known of its prompt, unless the
// prompt is more than its text, such as images.
func (p *knownPrompt) refineEstimate(a *loadtracker.Arrival) {
	if a.TextBytes == 0 && p.ids == nil {
		p.length = 0
	}
	a.Estimate = cmp.Or(p.length, a.Estimate)
}

// setPromptIDs notes the token ids of a prompt.
func (srv *Server) setPromptIDs(p *knownPrompt, ids []uint32) {
	p.steps = prefix.AppendSteps(nil, p.root, ids)
	p.ids, p.known, p.length = ids, policies.Tokens(len(ids)), policies.Tokens(len(ids))
	p.cached = srv.prefixes.Match(p.root, ids)
}

// awaitPromptIDs makes the stream learn the token ids of its prompt from the engine where they
// are of use and unknown. toPrefill says that a prefill replica computes them, whose KV comes
// to the own engine.
func (s *Stream) awaitPromptIDs(p *knownPrompt, toPrefill bool) {
	switch {
	case p.ids == nil && (p.text.Len() > 0 || toPrefill):
		s.newPrompt = &awaitedPrompt{text: p.text, expected: toPrefill}
	case toPrefill:
		s.server.prefixes.Expect(p.root, p.ids)
	}
}

// awaitedPrompt is a prompt whose token ids the engine has not sent yet.
type awaitedPrompt struct {
	text     prefix.Text
	expected bool // the own engine gets its KV
}

// learnPrompt learns the token ids of the prompt, once an event has brought them.
func (s *Stream) learnPrompt(ev *session.Event) {
	s.mu.Lock()
	ids, n := s.machine.IDs()
	s.mu.Unlock()
	switch {
	case n > 0:
		s.server.texts.Learn(s.newPrompt.text, s.root, ids[:n])
		if s.newPrompt.expected {
			s.server.prefixes.Expect(s.root, ids[:n])
		}
	case ev.Chunk == nil || ev.Chunk.Tokens == 0 && ev.Kind != session.LegEnded:
		return
	}
	s.newPrompt = nil // learnt, or the engine does not say
}

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
	if srv.engineFacts.reportsCached() {
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
	cached := policies.Tokens(u.Cached)
	if srv.engineFacts.reportsCached() {
		srv.estimatesCached.Store(false)
	} else {
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
	srv.engineFacts.forgetPromptDetails()
	srv.estimatesCached.Store(false)
}

// place returns where a request starts. plain says that its answer is no stream, so that it
// cannot move later.
func (srv *Server) place(r policies.Request, p *knownPrompt, plain bool) policies.Target {
	if srv.cfg.Placer == nil {
		return policies.Target{}
	}
	r.Input = max(cmp.Or(p.length, r.Input), p.known)
	r.Cached = p.cached
	if plain {
		r.Features |= policies.HiddenTokens
	}
	return srv.normalize(srv.cfg.Placer.Place(r, p.steps))
}
