// Package engineinfo says what an inference engine is, and how loaded it is, as far as the engine states
// it: package dialect asks it. Pace says when to read its load again.
//
// Everything is optional. What an engine does not state is the zero value, and no caller may treat that as a
// fault: engines differ.
package engineinfo

import (
	"cmp"
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
)

// Presence is whether an engine has an ability.
type Presence uint8

// The values. The zero value is for engines that do not show it.
const (
	Unknown Presence = iota
	Absent
	Present
)

// String names the value, for logs and tables.
func (p Presence) String() string {
	if p > Present {
		p = Unknown
	}
	return [...]string{Unknown: "unknown", Absent: "no", Present: "yes"}[p]
}

// Model is a name under which an engine serves a model or an adapter.
type Model struct {
	Name    string
	Context policies.Tokens // max_model_len; 0: not stated
	Adapter bool            // it is a LoRA adapter of another one
}

// Info is what is known of an engine since it started. The zero value knows nothing.
type Info struct {
	Version string  // as GET /version states it
	Models  []Model // as GET /v1/models lists them; read-only; none: it lists none
	// BlockTokens is the length of a KV block, and KVTokens the size of the KV cache.
	BlockTokens, KVTokens policies.Tokens
	// Connector says whether the engine can hand KV over to another one. Metrics show only
	// some connectors; that there is none shows only when a request that asks for
	// a handover is answered without its parameters.
	Connector Presence
	// ConnectorName is the name of the connector, as the engine's metrics or the parameters
	// of a handover state it; "" if unknown. Layout is what the engine states of its
	// KV blocks that another engine must have in common; "" if unknown.
	ConnectorName, Layout string
	// TokensPerChunk is the most token ids that one event of an answer has carried: more
	// than 1 with an engine that collects tokens, or with speculation. 0: no answer seen yet.
	TokensPerChunk int
	// DraftTokens is how many tokens the engine speculates on in each step; 0: none, or
	// not stated.
	DraftTokens int
	// PromptDetails says whether usage contains the cached tokens of a prompt.
	PromptDetails Presence
	// RefusesTokenIDs lists the paths on which the engine refuses return_token_ids: requests there
	// cannot move.
	RefusesTokenIDs []string
	// Start identifies this life of the engine: it grows each time the engine is found to
	// have started. What an earlier life handed over is void.
	Start uint64
}

// model returns the entry of a name.
func (i Info) model(name string) (Model, bool) {
	for _, m := range i.Models {
		if m.Name == name {
			return m, true
		}
	}
	return Model{}, false
}

// Context returns the longest sequence of a model, 0 if it is not stated.
func (i Info) Context(model string) policies.Tokens {
	m, _ := i.model(model)
	return m.Context
}

// Lists reports whether the engine has listed a name.
func (i Info) Lists(name string) bool {
	_, listed := i.model(name)
	return listed
}

// IsAdapter reports whether a name that clients ask for is an adapter of model, as far as is
// known: KV that was computed for it is not the model's.
func (i Info) IsAdapter(name, model string) bool {
	m, listed := i.model(name)
	return name != "" && name != model && (m.Adapter || !listed)
}

// maxNamed is how many models an error names.
const maxNamed = 4

// Check returns why an engine cannot serve a model with sequences of a length, nil if it can
// as far as is known.
func (i Info) Check(name string, context policies.Tokens) error {
	if name == "" || len(i.Models) == 0 {
		return nil
	}
	m, found := i.model(name)
	switch {
	case !found:
		var listed []string
		for _, m := range i.Models[:min(len(i.Models), maxNamed)] {
			listed = append(listed, m.Name)
		}
		return &MismatchError{fmt.Sprintf("the engine serves %q, not %q: start it with that model or --served-model-name, or correct the fleet file", listed, name)}
	case m.Context > 0 && m.Context < context:
		return &MismatchError{fmt.Sprintf("the engine takes sequences of %d tokens, the fleet file says %d: raise the engine's --max-model-len, or lower the model's context", m.Context, context)}
	}
	return nil
}

// MismatchError is why an engine that answers is not the one of the fleet file.
type MismatchError struct{ Text string }

func (e *MismatchError) Error() string { return e.Text }

// Capacity returns the size of the KV cache to count with. stated is that of the fleet file,
// 0 if it has none, and assumed what to take if neither is known. Of two that differ, the
// smaller one counts: more than the engine has cannot be used, and an operator may use less.
func (i Info) Capacity(stated, assumed policies.Tokens) policies.Tokens {
	switch {
	case stated > 0 && i.KVTokens > 0:
		return min(stated, i.KVTokens)
	case stated > 0:
		return stated
	case i.KVTokens > 0:
		return i.KVTokens
	}
	return assumed
}

// CheckCapacity returns a warning if the fleet file states another size of the KV cache than
// the engine, "" if not. A difference below one block is none: engines use whole blocks.
func (i Info) CheckCapacity(stated policies.Tokens) string {
	if stated <= 0 || i.KVTokens <= 0 || max(stated, i.KVTokens)-min(stated, i.KVTokens) < max(i.BlockTokens, 1) {
		return ""
	}
	return fmt.Sprintf("kv_tokens is %d in the fleet file, the engine has %d; the smaller one counts: remove kv_tokens, or correct it",
		stated, i.KVTokens)
}

// Metrics is what one answer of an engine about its load says.
type Metrics struct {
	Load                  policies.EngineLoad // Queued is that of this report alone
	StatesRequests        bool                // Load.Running and Load.Waiting are stated
	BlockTokens, KVTokens policies.Tokens
	Connector             Presence // Present or Unknown
	ConnectorName, Layout string   // as in Info
	DraftTokens           int
	StartedAt             float64 // when the engine's process started, in Unix seconds; 0: not stated
}

// Update takes over what metrics show of the engine. What they do not show stays.
func (i *Info) Update(m Metrics) {
	if m.KVTokens > 0 {
		i.BlockTokens, i.KVTokens = m.BlockTokens, m.KVTokens
	}
	if m.Connector == Present && i.Connector == Unknown {
		i.Connector = Present
	}
	i.ConnectorName, i.Layout = cmp.Or(m.ConnectorName, i.ConnectorName), cmp.Or(m.Layout, i.Layout)
	i.DraftTokens = max(i.DraftTokens, m.DraftTokens)
}
