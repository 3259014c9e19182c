package migratord

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// TestFrontendMetrics collects every metric from a state whose fields all have different values.
func TestFrontendMetrics(t *testing.T) {
	state := frontend.Status{
		Load: policies.Load{Running: 1, Waiting: 2, Held: 3, Promised: 4, Iteration: 0.5,
			Engine: policies.EngineLoad{KVUsed: 12, Running: 13, Waiting: 14, Preemptions: 15}},
		Engine: engineinfo.Info{Version: "0.32.0", KVTokens: 16}, EngineProblem: "another model",
		Flow:        policies.Flow{Arrivals: []float64{1, 5}, Tokens: []float64{3, 4}, Prefill: []float64{2, 6}, Seen: 9},
		EngineReady: true, EngineHangs: 10, Refused: 11, Unread: 47, UnreadCut: 48, CachedEstimated: true, BytesPerToken: 4.5, EstimateError: 0.25,
	}
	p := &state.Prefixes
	p.Blocks, p.Bytes, p.Queries, p.Hits, p.Tokenized, p.TokenizeFailed, p.TokenizeSkipped = 41, 42, 43, 44, 45, 2, 46
	want := map[string]float64{
		"prefix_source none": 1, "prefix_blocks": 41, "prefix_index_bytes": 42, "prefix_queried_tokens_total": 43, "prefix_hit_tokens_total": 44,
		"tokenize_calls_total answered": 45, "tokenize_calls_total failed": 2, "tokenize_calls_total skipped": 46,
		"engine_ready": 1, "engine_hung": 0, "engine_hangs_total": 10, "engine_mismatch": 1, "engine_info 0.32.0": 1,
		"engine_kv_tokens": 16, "engine_kv_used_tokens": 12, "engine_running": 13, "engine_waiting": 14, "engine_preemptions_total": 15, "draining": 0, "running": 1, "waiting": 2, "held_tokens": 3, "promised_tokens": 4, "iteration_seconds": 0.5,
		"requests_seen_total": 9, "requests_refused_total": 11, "unread_answers": 47, "unread_answers_cut_total": 48, "arrivals_per_second": 6, "generated_tokens_per_second": 7, "prefill_tokens_per_second": 8, "cached_tokens_estimated": 1, "bytes_per_token": 4.5, "estimate_error_ratio": 0.25,
	}
	checkMetrics(t, newCollector("r0", "m", frontendMetrics, func() frontend.Status { return state }), want)
}

// TestMigrationMetrics collects every metric from a state whose fields all have different values.
func TestMigrationMetrics(t *testing.T) {
	state := migrationSample{
		market: market.Status{
			Counts: bidask.Counts{Offered: [policies.Cheaper + 1]uint64{policies.Growth: 1}, MovedOut: [policies.Cheaper + 1]uint64{policies.Drain: 2}, FailedOut: [policies.Cheaper + 1]uint64{policies.Spill: 3},
				MovedIn: 4, FailedIn: 5, Returned: [bidask.ReturnWithdrawn + 1]uint64{bidask.ReturnNoCandidates: 6}, Sent: [bidask.Drop + 1]uint64{bidask.Ask: 7}},
			Received:      [bidask.Drop + 1]uint64{bidask.Bid: 8},
			SummariesSent: 9, SummariesReceived: 10, Ignored: 11, Offers: 12, Exporting: 13, Importing: 14, Incoming: 15, Throughput: 16, FreshPeers: 17, Forwards: 18,
			Residents: 19, Pinned: 20, PinnedSeconds: 21, PrefixBytesSent: 37, PrefixBytesReceived: 38, PrefixesRefused: 39, Holders: 40, Slowdown: 41, LoadError: 42,
		},
		executor: move.Stats{
			Sent: map[string]uint64{"live": 22}, Received: map[string]uint64{"reprompt": 23}, Failed: map[string]uint64{"lease": 24}, Running: 25, Bytes: 26, Copied: 27,
			Corrupt: 28, Rounds: 29, Rescued: 34, Lost: 35, SessionsAbandoned: 36,
		},
		maxConcurrent: 33,
	}
	want := map[string]float64{
		"prefix_sketch_bytes_total sent": 37, "prefix_sketch_bytes_total received": 38, "prefix_summaries_refused_total": 39, "prefix_holders": 40,
		"migrations_offered_total growth": 1, "migrations_out_total drain": 2, "migrations_out_failed_total spill": 3, "migrations_in_total": 4, "migrations_in_failed_total": 5,
		"offers_returned_total no candidates": 6, "market_messages_sent_total ask": 7, "market_messages_received_total bid": 8, "summaries_sent_total": 9,
		"summaries_received_total": 10, "market_messages_ignored_total": 11, "offers": 12, "transfers_concurrent send": 13, "transfers_concurrent receive": 14,
		"incoming_tokens": 15, "incoming_tokens_per_second": 16, "peers_known": 17, "slowdown_ratio": 41, "peer_load_error_ratio": 42, "forwards_total": 18, "residents": 19, "pinned": 20, "pinned_seconds": 21,
		"transfers_sent_total live": 22, "transfers_received_total reprompt": 23, "transfers_failed_total lease": 24, "transfers_running": 25, "transfer_bytes_total": 26,
		"transfer_copied_bytes_total": 27, "transfer_corrupt_blocks_total": 28, "transfer_rounds_total": 29,
		"transfers_max_concurrent send": 33, "transfers_max_concurrent receive": 33, "rescues_total rescued": 34, "rescues_total lost": 35, "engine_sessions_abandoned_total": 36,
	}
	for name, labels := range map[string]string{
		"migrations_offered_total": "outlier drain spill prefill cheaper", "migrations_out_total": "growth outlier spill prefill cheaper", "migrations_out_failed_total": "growth outlier drain prefill cheaper",
		"transfers_sent_total": "handoff reprompt", "transfers_received_total": "live handoff",
	} {
		for label := range strings.FieldsSeq(labels) {
			want[name+" "+label] = 0 // from the start
		}
	}
	checkMetrics(t, newCollector("r0", "m", migrationMetrics, func() migrationSample { return state }), want)
}

// TestConnectorMetrics collects every metric from a state whose fields all have different values.
func TestConnectorMetrics(t *testing.T) {
	state := kvport.Stats{Offered: 1, Taken: 2, Expired: 3, Fetched: 4, Failed: 5, Corrupt: 6, Sessions: 7}
	want := map[string]float64{
		"connector_offers_total": 1, "connector_offers_ended_total taken": 2, "connector_offers_ended_total expired": 3,
		"connector_fetches_total received": 4, "connector_fetches_total failed": 5, "connector_corrupt_blocks_total": 6, "connector_sessions_total": 7,
	}
	checkMetrics(t, newCollector("r0", "m", connectorMetrics, func() kvport.Stats { return state }), want)
}

// TestPrefixMetrics collects every metric from a state whose fields all have different values.
func TestPrefixMetrics(t *testing.T) {
	state := prefixSample{frontend.Pulls{Pulled: 1, Tokens: 2, Recompute: 3, Failed: map[string]uint64{"gone": 4}, Seconds: 5}, kvport.Served{Prefixes: 6, Tokens: 7, Refused: 8},
		frontend.Pulls{Pulled: 9, Tokens: 10, Failed: map[string]uint64{"deadline": 11}, Seconds: 12}}
	want := map[string]float64{
		"prefix_pulls_total": 1, "prefix_pulled_tokens_total": 2, "prefix_pulls_declined_total": 3, "prefix_pulls_failed_total gone": 4, "prefix_pull_wait_seconds_total": 5,
		"prefixes_served_total": 6, "prefixes_served_tokens_total": 7, "prefixes_refused_total": 8,
		"prefill_fetches_total": 9, "prefill_fetched_tokens_total": 10, "prefill_fetches_failed_total deadline": 11, "prefill_fetch_wait_seconds_total": 12,
	}
	checkMetrics(t, newCollector("r0", "m", prefixMetrics, func() prefixSample { return state }), want)
}

// TestKVEventsMetrics collects every metric from a state whose fields all have different values.
func TestKVEventsMetrics(t *testing.T) {
	state := kvEventsSample{
		kvevents.Status{Connected: true, Live: true, Connections: 2, Batches: 3, Duplicates: 4, Gaps: 5, Lost: 6, Restarts: 7, Replays: 8, Failed: 9, Malformed: 10, OtherRank: 19, Rejected: 11, Ignored: 12},
		prefix.Counts{Stored: 13, Removed: 14, Orphans: 15, Unknown: 16, Refused: 17, Evicted: 18},
	}
	want := map[string]float64{
		"kv_events_connected": 1, "kv_events_connections_total": 2, "kv_events_batches_total applied": 3, "kv_events_batches_total duplicate": 4, "kv_events_gaps_total": 5,
		"kv_events_batches_total lost": 6, "kv_events_restarts_total": 7, "kv_events_replays_total": 8, "kv_events_replays_failed_total": 9,
		"kv_events_batches_total malformed": 10, "kv_events_batches_total other_rank": 19, "kv_events_messages_rejected_total": 11, "kv_events_blocks_total ignored": 12, "kv_events_blocks_total stored": 13,
		"kv_events_blocks_total removed": 14, "kv_events_blocks_total orphan": 15, "kv_events_blocks_total unknown": 16, "kv_events_blocks_total refused": 17, "kv_events_blocks_total evicted": 18,
	}
	checkMetrics(t, newCollector("r0", "m", kvEventsMetrics, func() kvEventsSample { return state }), want)
}

// checkMetrics collects metrics, and compares them by their names and labels.
func checkMetrics(t *testing.T, c prometheus.Collector, want map[string]float64) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	testkit.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()[len("cascade_migrator_"):]
			for _, l := range m.GetLabel() {
				if l.GetName() != "replica" && l.GetName() != "model" {
					name += " " + l.GetValue()
				}
			}
			got := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			if w, ok := want[name]; !ok || got != w {
				t.Errorf("%s = %v, want %v", name, got, w)
			}
			delete(want, name)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	problems, err := testutil.GatherAndLint(r)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
