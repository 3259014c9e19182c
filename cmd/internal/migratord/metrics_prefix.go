package migratord

import (
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvport"
)

// prefixSample is the state from which a scrape reads the metrics of prefix pulls, and of prompts that
// prefill replicas compute.
type prefixSample struct {
	pulls    frontend.Pulls
	served   kvport.Served
	prefills frontend.Pulls
}

// prefixMetrics are the metrics of prefix pulls and fetched prompts.
var prefixMetrics = []metric[prefixSample]{
	counter("prefix_pulls_total", "Requests that began after the KV of their prompt's beginning was copied from another replica.", func(s prefixSample) float64 { return float64(s.pulls.Pulled) }),
	counter("prefix_pulled_tokens_total", "Prompt tokens whose KV was copied for these requests.", func(s prefixSample) float64 { return float64(s.pulls.Tokens) }),
	counter("prefix_pulls_declined_total", "Requests whose prompt another replica holds more of, and for which computing it was predicted to be as fast as copying it.", func(s prefixSample) float64 { return float64(s.pulls.Recompute) }),
	counters("prefix_pulls_failed_total", "Copies that failed; the engine computed the prompt.", "reason", func(s prefixSample) map[string]float64 { return floats(s.pulls.Failed) }),
	counter("prefix_pull_wait_seconds_total", "Time for which requests waited for copies, failed ones included.", func(s prefixSample) float64 { return s.pulls.Seconds }),
	counter("prefixes_served_total", "Prefixes of this replica's engine that other replicas were offered.", func(s prefixSample) float64 { return float64(s.served.Prefixes) }),
	counter("prefixes_served_tokens_total", "Prompt tokens of these prefixes.", func(s prefixSample) float64 { return float64(s.served.Tokens) }),
	counter("prefill_fetches_total", "Requests that began after the KV of their prompt was fetched from the prefill replica that had computed it.", func(s prefixSample) float64 { return float64(s.prefills.Pulled) }),
	counter("prefill_fetched_tokens_total", "Prompt tokens of these requests.", func(s prefixSample) float64 { return float64(s.prefills.Tokens) }),
	counters("prefill_fetches_failed_total", "Prompts that a prefill replica should have computed and this replica's engine did.", "reason", func(s prefixSample) map[string]float64 { return floats(s.prefills.Failed) }),
	counter("prefill_fetch_wait_seconds_total", "Time for which requests waited for prefill replicas and the KV, failed fetches included.", func(s prefixSample) float64 { return s.prefills.Seconds }),
	counter("prefixes_refused_total", "Calls of other replicas for a prefix that was not there or could not be served.", func(s prefixSample) float64 { return float64(s.served.Refused) }),
}
