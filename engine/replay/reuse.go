package replay

import "github.com/cascadeinfer/cascade/engine/trace"

// Sources of the figures in Reuse.
const (
	FromUsage   = "usage"   // of the answers
	FromEngines = "engines" // their counters
)

// Reuse is how much of the prompts a fleet took from its prefix caches, for traces whose prompts share
// prefixes, and how evenly it spread the work meanwhile.
type Reuse struct {
	// PromptTokens are those of the answered requests, or those that engines looked up; CachedTokens of
	// them were in a prefix cache. Source is FromUsage or FromEngines; empty if neither said anything.
	// Engines also count the prompts of requests that moved.
	PromptTokens int64   `json:"prompt_tokens"`
	CachedTokens int64   `json:"cached_tokens"`
	Source       string  `json:"source,omitempty"`
	HitRate      float64 `json:"hit_rate"` // CachedTokens of PromptTokens
	// Ideal is the hit rate of one cache that serves all requests and loses nothing, by the ids of the
	// trace; 0 if it is not known, as of more than a million blocks. OfIdeal is HitRate over Ideal.
	Ideal   float64 `json:"ideal_hit_rate"`
	OfIdeal float64 `json:"of_ideal"`
	// LoadCV is the coefficient of variation of the replicas' loads inside a stage (see BalanceMeter);
	// −1 if it is not known.
	LoadCV float64 `json:"load_cv"`

	ideal trace.IdealCache
}

// AddRequest counts a request that is due. Requests come in order of arrival.
func (u *Reuse) AddRequest(r trace.Request) {
	u.ideal.Limit = maxIdealBlocks
	u.ideal.Add(r)
}

// maxIdealBlocks bounds the memory for the ideal to 38 MB, of a trace of any length.
const maxIdealBlocks = 1 << 20

// AddAnswer counts the usage of a request that has ended.
func (u *Reuse) AddAnswer(r *Record) {
	if r.Error == "" {
		u.PromptTokens += max(r.Prompt, 0)
		u.CachedTokens += max(r.Cached, 0)
	}
}

// Finish computes the figures and forgets the ids of prefixes; false if the trace had no prefix ids, so that there is nothing to show.
// A server that named no cached token at all has not reported them: vLLM, for one, does so only with
// --enable-prompt-tokens-details.
func (u *Reuse) Finish() bool {
	u.Ideal, _ = u.ideal.HitRate()
	u.LoadCV = -1
	if u.CachedTokens > 0 {
		u.Source = FromUsage
	}
	u.divide()
	named := u.ideal.Named()
	u.ideal = trace.IdealCache{}
	return named
}

// AddEngines adds what the engines' counters say: prompt tokens that were looked up and found in their
// caches, which count if the answers did not say it, and the spread of load; −1 if that is not known.
func (u *Reuse) AddEngines(queries, hits int64, loadCV float64) {
	u.LoadCV = loadCV
	if u.Source == "" && queries > 0 {
		u.PromptTokens, u.CachedTokens, u.Source = queries, hits, FromEngines
	}
	u.divide()
}

func (u *Reuse) divide() {
	u.HitRate, u.OfIdeal = 0, 0
	if u.Source != "" && u.PromptTokens > 0 {
		u.HitRate = float64(u.CachedTokens) / float64(u.PromptTokens)
	}
	if u.Ideal > 0 {
		u.OfIdeal = u.HitRate / u.Ideal
	}
}
