package frontend

import (
	"context"
	"errors"
	"net/http"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// knownPrompt is what is known of a request's prompt before its engine has computed it.
type knownPrompt struct {
	root   prefix.Hash     // that its ids extend
	steps  []prefix.Step   // the first ones; none: unknown
	known  policies.Tokens // how many of its first tokens are known
	exact  policies.Tokens // its length, 0 while that is unknown
	cached policies.Tokens // how many of its first tokens the own engine holds
}

// readPrompt finds out which tokens a request's prompt begins with, and how many of them the own
// engine holds. Only prompts that are token ids are known.
func (srv *Server) readPrompt(_ context.Context, req *openai.Request, _ http.Header, _ policies.Tokens) (p knownPrompt) {
	if srv.cfg.PrefixPull == nil {
		return p
	}
	adapter := ""
	if req.Model != srv.cfg.Model {
		adapter = req.Model
	}
	p.root = prefix.Root(srv.cfg.Model, adapter, req.CacheSalt)
	if ids := req.PromptIDs(); ids != nil {
		p.steps = prefix.AppendSteps(nil, p.root, ids)
		p.known, p.exact = policies.Tokens(len(ids)), policies.Tokens(len(ids))
		p.cached = srv.prefixes.Known(req.Model, ids)
	}
	return p
}

// tokenize returns the token ids of a request's prompt.
func (srv *Server) tokenize(context.Context, *openai.Request, http.Header) ([]uint32, error) {
	return nil, errors.New("prompts as text are not tokenized")
}
