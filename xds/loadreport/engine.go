package loadreport

import (
	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Engine is what an engine says of itself, as its migrator reports it. Zero values are not
// stated.
type Engine struct {
	Version     string          `json:"version,omitempty"`
	Context     policies.Tokens `json:"context,omitempty"` // the longest sequence of the replica's model
	BlockTokens policies.Tokens `json:"block_tokens,omitempty"`
	KVTokens    policies.Tokens `json:"kv_tokens,omitempty"` // size of the KV cache
	// Connector says whether the engine hands KV over to other engines: yes, no or unknown.
	Connector string `json:"connector,omitempty"`
	// TokensPerChunk is the most tokens that one event of an answer has carried.
	TokensPerChunk int `json:"tokens_per_chunk,omitempty"`
	// DraftTokens is how many tokens it speculates on in each step.
	DraftTokens int `json:"draft_tokens,omitempty"`
	// PromptDetails says whether usage contains cached tokens: yes, no or unknown.
	PromptDetails string `json:"prompt_details,omitempty"`
	// RefusesTokenIDs is on which paths the engine refuses return_token_ids: requests there cannot move.
	RefusesTokenIDs string `json:"refuses_token_ids,omitempty"`
}

// KnownPrefixes is what a replica knows of the prompts that its engine has cached.
type KnownPrefixes struct {
	// Source is events (the engine's KV events), own (what the engine was sent) or none.
	Source string `json:"source"`
	// Blocks is how many KV blocks it is known to hold.
	Blocks int64 `json:"blocks"`
}

// decodeKnownPrefixes bounds what is only informative.
func decodeKnownPrefixes(m *api.KnownPrefixes) KnownPrefixes {
	return KnownPrefixes{Source: cleantext.Printable(m.GetSource(), maxKeyword), Blocks: min(max(m.GetBlocks(), 0), MaxTokens)}
}

// decodeEngine bounds what is only informative: an Engine decides nothing here.
func decodeEngine(m *api.Engine) Engine {
	tokens := func(n int64) policies.Tokens { return policies.Tokens(min(max(n, 0), MaxTokens)) }
	return Engine{
		Version: cleantext.Printable(m.GetVersion(), maxKeyword), Context: tokens(m.GetContext()), BlockTokens: tokens(m.GetBlockTokens()),
		KVTokens: tokens(m.GetKvTokens()), Connector: cleantext.Printable(m.GetConnector(), maxKeyword), PromptDetails: cleantext.Printable(m.GetPromptDetails(), maxKeyword),
		RefusesTokenIDs: cleantext.Printable(m.GetRefusesTokenIds(), maxKeyword),
		TokensPerChunk:  int(min(m.GetTokensPerChunk(), maxCount)), DraftTokens: int(min(m.GetDraftTokens(), maxCount)),
	}
}
