package migratord

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// RegisterMetrics registers the metrics of the daemon.
func (d *Daemon) RegisterMetrics(r prometheus.Registerer) {
	replica, model := d.cfg.Replica.ID, d.model
	r.MustRegister(d.latencies.firstToken, d.latencies.perToken, d.latencies.stall,
		newCollector(replica, model, frontendMetrics, d.Status),
		newCollector(replica, model, prefixMetrics, func() prefixSample {
			return prefixSample{d.frontend.PrefixPulls(), d.PrefixesServed(), d.frontend.Prefills()}
		}))
	if d.market != nil {
		r.MustRegister(newCollector(replica, model, migrationMetrics, func() migrationSample {
			return migrationSample{market: d.market.Status(), executor: d.executor.Stats(), maxConcurrent: d.cfg.Fleet.Migration.MaxConcurrent}
		}))
	}
	if d.kvEvents != nil {
		r.MustRegister(newCollector(replica, model, kvEventsMetrics, func() kvEventsSample {
			events, _ := d.KVEvents()
			return kvEventsSample{events, d.frontend.PrefixStatus().Counts}
		}))
	}
	if c := d.Connector(); c != nil {
		r.MustRegister(newCollector(replica, model, connectorMetrics, c.Stats))
	}
}

// metric is one metric of a migrator, which is read from a state S at a scrape: either value returns
// its value, or values returns one value per value of a label.
type metric[S any] struct {
	name, help string
	kind       prometheus.ValueType
	value      func(S) float64
	label      string
	values     func(S) map[string]float64
}

func gauge[S any](name, help string, value func(S) float64) metric[S] {
	return metric[S]{name: name, help: help, kind: prometheus.GaugeValue, value: value}
}

func counter[S any](name, help string, value func(S) float64) metric[S] {
	return metric[S]{name: name, help: help, kind: prometheus.CounterValue, value: value}
}

func gauges[S any](name, help, label string, values func(S) map[string]float64) metric[S] {
	return metric[S]{name: name, help: help, kind: prometheus.GaugeValue, label: label, values: values}
}

func counters[S any](name, help, label string, values func(S) map[string]float64) metric[S] {
	return metric[S]{name: name, help: help, kind: prometheus.CounterValue, label: label, values: values}
}

// collector collects metrics whose names begin with cascade_migrator_, and which have the labels
// replica and model.
type collector[S any] struct {
	read    func() S
	metrics []metric[S]
	descs   []*prometheus.Desc // of metrics
}

var _ prometheus.Collector = (*collector[int])(nil)

func newCollector[S any](replica, model string, metrics []metric[S], read func() S) *collector[S] {
	c := &collector[S]{read: read, metrics: metrics}
	for _, m := range metrics {
		var variable []string
		if m.values != nil {
			variable = []string{m.label}
		}
		c.describe(m.name, m.help, variable, replica, model)
	}
	return c
}

func (c *collector[S]) describe(name, help string, variable []string, replica, model string) {
	labels := prometheus.Labels{"replica": replica, "model": model}
	c.descs = append(c.descs, prometheus.NewDesc(prometheus.BuildFQName("cascade", "migrator", name), help, variable, labels))
}

// Describe implements prometheus.Collector.
func (c *collector[S]) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector[S]) Collect(out chan<- prometheus.Metric) {
	now := c.read()
	for i, m := range c.metrics {
		if m.values == nil {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.value(now))
			continue
		}
		for label, v := range m.values(now) {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, v, label)
		}
	}
}

// frontendMetrics are the metrics of a migrator's front end.
var frontendMetrics = []metric[frontend.Status]{
	gauge("engine_ready", "1 while the engine answers its health check and makes progress.", func(s frontend.Status) float64 { return boolValue(s.EngineReady) }),
	gauge("engine_hung", "1 while the engine makes no progress although it has work.", func(s frontend.Status) float64 { return boolValue(s.EngineHung) }),
	gauge("engine_mismatch", "1 while the engine answers and is not ready, because it is not the one of the fleet file.", func(s frontend.Status) float64 { return boolValue(s.EngineProblem != "") }),
	gauges("engine_info", "1, by the version that the engine states.", "version", func(s frontend.Status) map[string]float64 {
		if s.Engine.Version == "" {
			return nil
		}
		return map[string]float64{s.Engine.Version: 1}
	}),
	gauge("engine_kv_tokens", "Size of the engine's KV cache as the engine reports it; 0 if it does not.", func(s frontend.Status) float64 { return float64(s.Engine.KVTokens) }),
	gauge("engine_kv_used_tokens", "KV tokens in use by the engine's report, where a shared prefix counts once; 0 if it reports none.", func(s frontend.Status) float64 { return float64(s.Load.Engine.KVUsed) }),
	gauge("engine_running", "Requests in the engine's batch by its report.", func(s frontend.Status) float64 { return float64(s.Load.Engine.Running) }),
	gauge("engine_waiting", "Requests in the engine's queue by its report.", func(s frontend.Status) float64 { return float64(s.Load.Engine.Waiting) }),
	counter("engine_preemptions_total", "Requests that the engine preempted for want of KV, by its report.", func(s frontend.Status) float64 { return float64(s.Load.Engine.Preemptions) }),
	counter("engine_hangs_total", "Times that the engine was found to make no progress.", func(s frontend.Status) float64 { return float64(s.EngineHangs) }),
	gauge("draining", "1 once the migrator accepts no new requests.", func(s frontend.Status) float64 { return boolValue(s.Draining) }),
	gauge("running", "Requests that the engine generates for.", func(s frontend.Status) float64 { return float64(s.Load.Running) }),
	gauge("waiting", "Requests without a token yet.", func(s frontend.Status) float64 { return float64(s.Load.Waiting) }),
	gauge("held_tokens", "KV tokens of running requests.", func(s frontend.Status) float64 { return float64(s.Load.Held) }),
	gauge("promised_tokens", "Tokens of requests that are accepted and not yet running.", func(s frontend.Status) float64 { return float64(s.Load.Promised) }),
	gauge("iteration_seconds", "Recent mean time between a request's tokens.", func(s frontend.Status) float64 { return s.Load.Iteration }),
	counter("requests_seen_total", "Requests that were counted.", func(s frontend.Status) float64 { return float64(s.Flow.Seen) }),
	counter("requests_refused_total", "Requests that this replica's engine was not given because they would have waited for too long.", func(s frontend.Status) float64 { return float64(s.Refused) }),
	gauge("unread_answers", "Answers that wait for clients which read too slowly, after the memory for such answers was used up.", func(s frontend.Status) float64 { return float64(s.Unread) }),
	counter("unread_answers_cut_total", "Answers that were cut because their clients read them too slowly.", func(s frontend.Status) float64 { return float64(s.UnreadCut) }),
	gauge("arrivals_per_second", "Arriving requests per second, exponentially weighted.", func(s frontend.Status) float64 { return sum(s.Flow.Arrivals) }),
	gauge("generated_tokens_per_second", "Generated tokens per second, exponentially weighted.", func(s frontend.Status) float64 { return sum(s.Flow.Tokens) }),
	gauge("prefill_tokens_per_second", "Uncached prompt tokens per second, exponentially weighted.", func(s frontend.Status) float64 { return sum(s.Flow.Prefill) }),
	gauge("cached_tokens_estimated", "1 while the engine reports no cached tokens and prefill_tokens_per_second is estimated from the prompts it got.", func(s frontend.Status) float64 { return boolValue(s.CachedEstimated) }),
	gauges("prefix_source", "1, by where it is known from which prompts the engine holds: its KV events, what it was sent (own), or not at all (none).", "source", func(s frontend.Status) map[string]float64 {
		return map[string]float64{s.Prefixes.Source.String(): 1}
	}),
	gauge("prefix_blocks", "Blocks that the engine is known to hold in its prefix cache.", func(s frontend.Status) float64 { return float64(s.Prefixes.Blocks) }),
	gauge("prefix_index_bytes", "Memory of the indexes of what the engine holds.", func(s frontend.Status) float64 { return float64(s.Prefixes.Bytes) }),
	counter("prefix_queried_tokens_total", "Prompt tokens that the engine was sent.", func(s frontend.Status) float64 { return float64(s.Prefixes.Queries) }),
	counter("prefix_hit_tokens_total", "Prompt tokens of these that the engine had been sent before, or had generated, and that its KV cache has room for.", func(s frontend.Status) float64 { return float64(s.Prefixes.Hits) }),
	counters("tokenize_calls_total", "Prompts whose tokens were wanted from the engine, by result: answered, failed, or skipped (it was not asked: the prompt is too long, or the engine is busy or has just failed).", "result", func(s frontend.Status) map[string]float64 {
		p := s.Prefixes
		return map[string]float64{"answered": float64(p.Tokenized), "failed": float64(p.TokenizeFailed), "skipped": float64(p.TokenizeSkipped)}
	}),
	gauge("bytes_per_token", "Prompt bytes per token, learnt from exact counts; 0 before the first.", func(s frontend.Status) float64 { return s.BytesPerToken }),
	gauge("estimate_error_ratio", "Mean relative error of the length estimates.", func(s frontend.Status) float64 { return s.EstimateError }),
}

// migrationSample is the state from which a scrape reads the migration metrics.
type migrationSample struct {
	market        market.Status
	executor      move.Stats
	maxConcurrent int // in each direction
}

// migrationMetrics are the metrics of migrations and of the market.
var migrationMetrics = []metric[migrationSample]{
	gauge("residents", "Requests that run here, of any front end.", func(m migrationSample) float64 { return float64(m.market.Residents) }),
	gauge("pinned", "Residents that cannot migrate.", func(m migrationSample) float64 { return float64(m.market.Pinned) }),
	gauge("pinned_seconds", "Time until the last pinned resident has ended, by its max_tokens; 0 when there is none, or one has no limit.", func(m migrationSample) float64 { return m.market.PinnedSeconds }),
	counters("migrations_offered_total", "Requests offered for migration.", "cause", func(m migrationSample) map[string]float64 { return byCause(m.market.Offered) }),
	counters("migrations_out_total", "Requests that migrated to another replica.", "cause", func(m migrationSample) map[string]float64 { return byCause(m.market.MovedOut) }),
	counters("migrations_out_failed_total", "Failed migrations to another replica; the request stayed. Requests that ended meanwhile do not count.", "cause", func(m migrationSample) map[string]float64 { return byCause(m.market.FailedOut) }),
	counter("migrations_in_total", "Requests that migrated from another replica.", func(m migrationSample) float64 { return float64(m.market.MovedIn) }),
	counter("migrations_in_failed_total", "Failed migrations from another replica. Requests that ended meanwhile do not count.", func(m migrationSample) float64 { return float64(m.market.FailedIn) }),
	counters("offers_returned_total", "Offers without a buyer.", "reason", func(m migrationSample) map[string]float64 { return byName[bidask.ReturnReason](m.market.Returned[:]) }),
	gauge("offers", "Current offers.", func(m migrationSample) float64 { return float64(m.market.Offers) }),
	gauge("incoming_tokens", "KV tokens of accepted migrations that have not arrived.", func(m migrationSample) float64 { return float64(m.market.Incoming) }),
	gauge("incoming_tokens_per_second", "Measured rate of incoming transfers; 0 while unknown.", func(m migrationSample) float64 { return float64(m.market.Throughput) }),
	gauges("transfers_max_concurrent", "Limit of concurrent transfers.", "direction", func(m migrationSample) map[string]float64 {
		return map[string]float64{"send": float64(m.maxConcurrent), "receive": float64(m.maxConcurrent)}
	}),
	gauges("transfers_concurrent", "Concurrent transfers.", "direction", func(m migrationSample) map[string]float64 {
		return map[string]float64{"send": float64(m.market.Exporting), "receive": float64(m.market.Importing)}
	}),
	counters("market_messages_sent_total", "Market messages sent to peers.", "kind", func(m migrationSample) map[string]float64 { return byName[bidask.MessageKind](m.market.Sent[:]) }),
	counters("market_messages_received_total", "Market messages received from peers.", "kind", func(m migrationSample) map[string]float64 { return byName[bidask.MessageKind](m.market.Received[:]) }),
	counter("market_messages_ignored_total", "Invalid or excess market messages from peers.", func(m migrationSample) float64 { return float64(m.market.Ignored) }),
	counter("summaries_sent_total", "Load summaries sent to peers.", func(m migrationSample) float64 { return float64(m.market.SummariesSent) }),
	counter("summaries_received_total", "Load summaries received from peers.", func(m migrationSample) float64 { return float64(m.market.SummariesReceived) }),
	counters("prefix_sketch_bytes_total", "Bytes that say, in load summaries, which prompts replicas hold.", "direction", func(m migrationSample) map[string]float64 {
		return map[string]float64{"sent": float64(m.market.PrefixBytesSent), "received": float64(m.market.PrefixBytesReceived)}
	}),
	counter("prefix_summaries_refused_total", "Summaries of what a peer holds that were not used: malformed, or of another version.", func(m migrationSample) float64 { return float64(m.market.PrefixesRefused) }),
	gauge("prefix_holders", "Peers that are known to hold prompts.", func(m migrationSample) float64 { return float64(m.market.Holders) }),
	gauge("peers_known", "Peers with a current load summary.", func(m migrationSample) float64 { return float64(m.market.FreshPeers) }),
	gauge("slowdown_ratio", "How many times as long iterations of the engine take as its profile says, by what requests took.", func(m migrationSample) float64 { return m.market.Slowdown }),
	gauge("peer_load_error_ratio", "Relative error of the running tokens that placement assumed of peers, at their reports.", func(m migrationSample) float64 { return m.market.LoadError }),
	counter("forwards_total", "Requests placed at a peer before their first token.", func(m migrationSample) float64 { return float64(m.market.Forwards) }),

	counters("transfers_sent_total", "Completed transfers to other replicas.", "method", func(m migrationSample) map[string]float64 { return byMode(m.executor.Sent) }),
	counters("transfers_received_total", "Completed transfers from other replicas.", "method", func(m migrationSample) map[string]float64 { return byMode(m.executor.Received) }),
	counters("transfers_failed_total", "Aborted transfers to other replicas.", "reason", func(m migrationSample) map[string]float64 { return floats(m.executor.Failed) }),
	gauge("transfers_running", "Transfers in progress, in both directions.", func(m migrationSample) float64 { return float64(m.executor.Running) }),
	counter("transfer_bytes_total", "KV bytes received, at the real engine's size.", func(m migrationSample) float64 { return float64(m.executor.Bytes) }),
	counter("transfer_copied_bytes_total", "Bytes copied by transports.", func(m migrationSample) float64 { return float64(m.executor.Copied) }),
	counter("transfer_rounds_total", "Pulls of blocks.", func(m migrationSample) float64 { return float64(m.executor.Rounds) }),
	counter("engine_sessions_abandoned_total", "Engine sessions abandoned because the engine did not release a request or blocks.", func(m migrationSample) float64 { return float64(m.executor.SessionsAbandoned) }),
	counters("rescues_total", "Streams that lost their engine, by whether they continued at another one.", "result", func(m migrationSample) map[string]float64 {
		return map[string]float64{"rescued": float64(m.executor.Rescued), "lost": float64(m.executor.Lost)}
	}),
	counter("transfer_corrupt_blocks_total", "Received blocks with a wrong checksum, which were not used.", func(m migrationSample) float64 { return float64(m.executor.Corrupt) }),
}

// connectorMetrics are the metrics of the client of an engine's CascadeConnector.
var connectorMetrics = []metric[kvport.Stats]{
	counter("connector_offers_total", "Requests whose KV the engine offered to other replicas.", func(s kvport.Stats) float64 { return float64(s.Offered) }),
	counters("connector_offers_ended_total", "Offers that ended: taken by another replica, or expired with their lease.", "result", func(s kvport.Stats) map[string]float64 {
		return map[string]float64{"taken": float64(s.Taken), "expired": float64(s.Expired)}
	}),
	counters("connector_fetches_total", "Fetches of other replicas' KV for the engine, which computes what was not received.", "result", func(s kvport.Stats) map[string]float64 {
		return map[string]float64{"received": float64(s.Fetched), "failed": float64(s.Failed)}
	}),
	counter("connector_corrupt_blocks_total", "Fetched blocks with a wrong checksum, which were fetched again or not used.", func(s kvport.Stats) float64 { return float64(s.Corrupt) }),
	counter("connector_sessions_total", "Connections to the engine's connector.", func(s kvport.Stats) float64 { return float64(s.Sessions) }),
}

// boolValue returns 1 for true, 0 for false.
func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func sum(xs []float64) (total float64) {
	for _, x := range xs {
		total += x
	}
	return total
}

// byName returns the counts that are not 0, by the names of their kinds.
func byName[K interface {
	~uint8
	fmt.Stringer
}](counts []uint64) map[string]float64 {
	out := make(map[string]float64, len(counts))
	for k, n := range counts {
		if n > 0 {
			out[K(k).String()] = float64(n)
		}
	}
	return out
}

// byCause returns counts by cause, zeros included: the rate of a counter that appears with its
// first event lacks that event.
func byCause(counts [policies.Cheaper + 1]uint64) map[string]float64 {
	out := make(map[string]float64, len(counts))
	for c := policies.Growth; c <= policies.Cheaper; c++ {
		out[c.String()] = float64(counts[c])
	}
	return out
}

// byMode returns counts by the mode of transfers, zeros included.
func byMode(counts map[string]uint64) map[string]float64 {
	out := floats(counts)
	for _, m := range []move.Mode{move.Live, move.Handoff, move.Reprompt} {
		out[m.String()] += 0
	}
	return out
}

func floats(counts map[string]uint64) map[string]float64 {
	out := make(map[string]float64, len(counts))
	for k, n := range counts {
		out[k] = float64(n)
	}
	return out
}
