package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// placer is a fake Placer: it sends every request to one target.
type placer struct {
	target  atomic.Pointer[policies.Target] // nil: the own engine
	last    atomic.Pointer[policies.Request]
	steps   atomic.Pointer[[]prefix.Step] // of the last prompt
	prefill atomic.Bool                   // the target is a prefill replica
	holders atomic.Bool                   // peers hold prompts
}

func (p *placer) sendTo(t policies.Target) { p.target.Store(&t) }

func (p *placer) Prefills() bool { return p.prefill.Load() }

func (p *placer) HasHolders() bool { return p.holders.Load() }

func (p *placer) Place(r policies.Request, steps []prefix.Step) (to policies.Target) {
	p.last.Store(&r)
	p.steps.Store(&steps)
	if t := p.target.Load(); t != nil && t.Address != "" {
		to, to.Prefill = *t, p.prefill.Load()
	}
	return to
}

// adopter is a fake Adopter that has every reservation, for the front end r0.
type adopter struct{}

func (adopter) Adopt(reservation, request string, frontEnd policies.ReplicaID) (json.RawMessage, error) {
	if frontEnd != "r0" || !strings.HasPrefix(request, "r0/") {
		return nil, fmt.Errorf("no reservation %s of request %s for %s", reservation, request, frontEnd)
	}
	return json.RawMessage(fmt.Sprintf(`{"cascade_reservation":%q}`, reservation)), nil
}

// rescuer is a fake Rescuer: it returns the first target that was not tried.
type rescuer struct {
	mu      sync.Mutex
	targets []policies.Target
	asked   [][]policies.ReplicaID
}

func (r *rescuer) Rescue(_ policies.Request, tried []policies.ReplicaID) (policies.Target, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, slices.Clone(tried))
	for _, t := range r.targets {
		if !slices.Contains(tried, t.Replica) {
			return t, true
		}
	}
	return policies.Target{}, false
}

func (r *rescuer) setTargets(targets ...policies.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets = targets
}

// prefixHolder is a fake of what prefix pulls need: one holder, and a copier.
type prefixHolder struct {
	mu     sync.Mutex
	holder policies.Target
	held   policies.Tokens
	copy   func(context.Context) error // instead of a copy that succeeds; nil: it does
	copies []PromptPrefix
}

func (f *prefixHolder) LongestPrefix(steps []prefix.Step) (policies.Target, policies.Tokens) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(steps) == 0 {
		return policies.Target{}, 0
	}
	return f.holder, min(f.held, steps[len(steps)-1].Tokens)
}

func (f *prefixHolder) Copy(ctx context.Context, _ policies.ReplicaID, p PromptPrefix) (policies.Tokens, string, error) {
	f.mu.Lock()
	f.copies = append(f.copies, p)
	do := f.copy
	f.mu.Unlock()
	if do != nil {
		return policies.Tokens(len(p.IDs)), "", do(ctx)
	}
	return policies.Tokens(len(p.IDs)), "shm", nil
}

// transferParams is what the fake engine reads of vLLM's kv_transfer_params.
type transferParams struct {
	Decode  bool   `json:"do_remote_decode"`
	Prefill bool   `json:"do_remote_prefill"`
	Request string `json:"remote_request_id"`
	Tokens  int    `json:"remote_num_tokens"`
}

// connector is the KV connector of all engines of a fleet. Like vLLM's it verifies nothing:
// an engine that fetches blocks which are not those of its prompt continues other ids.
type connector struct {
	mu     sync.Mutex
	kept   map[string][]uint32 // by remote_request_id
	serial int
	lie    func(params string) string // changes what the holder answers
	hidden bool                       // metrics do not show it

	asked, fetched atomic.Int64 // requests to keep, and to fetch
	fetching       func(*http.Request)
	keeping        func(*http.Request)
}

func (c *connector) serve(r *http.Request, p transferParams, prompt []uint32) (read []uint32, offer string) {
	switch {
	case p.Decode:
		c.asked.Add(1)
		if c.keeping != nil {
			c.keeping(r)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.serial++
		name := fmt.Sprint("cmpl-", c.serial)
		c.kept[name] = prompt
		offer = fmt.Sprintf(`{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_request_id":%q,"remote_num_tokens":%d}`, name, len(prompt))
		if c.lie != nil {
			offer = c.lie(offer)
		}
		return prompt, offer
	case p.Prefill:
		c.fetched.Add(1)
		if c.fetching != nil {
			c.fetching(r)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if kept, ok := c.kept[p.Request]; !ok || formatIDs(kept, true) != formatIDs(prompt, true) {
			prompt = append([]uint32{prompt[0] + 1}, prompt[1:]...)
		}
		delete(c.kept, p.Request)
	}
	return prompt, "null"
}

// reuse gives the blocks that are kept to other requests.
func (c *connector) reuse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.kept)
}
