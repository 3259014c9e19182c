// Command place-forecast is the module of place.Forecast. Its settings are the prices of an engine,
// "iteration", "sequence", "prompt" and "copied" in picoseconds, "prompt2" in attoseconds and "held" in
// femtoseconds (see place.Prices), and "answer", "chunk", "margin", "shorter-margin", "prefill", "others", "evicted",
// "bound", "choices", "queue" and "by-length" (0 or 1). "margin" and "shorter-margin" are in microseconds, at
// most 2^31−1; 0 is the default. "copied 0" turns starts in shorter stages off.
package main

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	policy "github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/wasm/guest/configure"
	"github.com/cascadeinfer/cascade/wasm/guest/place"
	"github.com/cascadeinfer/cascade/wasm/guest/settings"
)

type plugin struct{ policy.Forecast }

func (p *plugin) Configure(config []byte) error {
	field := func(name string, set func(int64)) settings.Field {
		return settings.Field{Name: name, Set: set, High: math.MaxInt32}
	}
	price := func(name string, to *int64) settings.Field {
		return settings.Field{Name: name, Set: func(v int64) { *to = v }, High: math.MaxInt64}
	}
	return settings.Read(config,
		price("iteration", &p.Prices.Iteration), price("sequence", &p.Prices.Sequence), price("prompt", &p.Prices.Prompt),
		price("prompt2", &p.Prices.Prompt2), price("held", &p.Prices.Held), price("copied", &p.Prices.Copied),
		field("answer", func(v int64) { p.Answer = policies.Tokens(v) }),
		field("chunk", func(v int64) { p.Chunk = policies.Tokens(v) }),
		field("margin", func(v int64) { p.Margin = policies.Micros(v) }),
		field("shorter-margin", func(v int64) { p.ShorterMargin = policies.Micros(v) }),
		field("prefill", func(v int64) { p.Prefill = int(v) }),
		field("others", func(v int64) { p.Others = int(v) }),
		field("evicted", func(v int64) { p.Evicted = int(v) }),
		field("bound", func(v int64) { p.Bound = int(v) }),
		field("choices", func(v int64) { p.Choices = int(v) }),
		field("queue", func(v int64) { p.Queue = policies.Tokens(v) }),
		settings.Field{Name: "by-length", Set: func(v int64) { p.ByLength = v == 1 }, High: 1})
}

func init() {
	p := &plugin{}
	configure.Register(p)
	place.Register(p)
}

func main() {}
