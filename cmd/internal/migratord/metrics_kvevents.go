package migratord

import (
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// kvEventsSample is the state from which a scrape reads the metrics of an engine's KV events.
type kvEventsSample struct {
	events kvevents.Status
	blocks prefix.Counts // of the index that the events are applied to
}

// kvEventsMetrics are the metrics of a subscription to an engine's KV events.
var kvEventsMetrics = []metric[kvEventsSample]{
	gauge("kv_events_connected", "1 while the engine is connected to publish KV events.", func(s kvEventsSample) float64 { return boolValue(s.events.Connected) }),
	counter("kv_events_connections_total", "Connections on which the engine published KV events.", func(s kvEventsSample) float64 { return float64(s.events.Connections) }),
	counters("kv_events_batches_total", "Batches of KV events, by what became of them: applied, live or by a replay; duplicate; malformed; of another data-parallel rank; or lost, with no replay that brought them.", "outcome", func(s kvEventsSample) map[string]float64 {
		e := s.events
		return map[string]float64{
			"applied": float64(e.Batches), "duplicate": float64(e.Duplicates), "malformed": float64(e.Malformed), "other_rank": float64(e.OtherRank), "lost": float64(e.Lost),
		}
	}),
	counter("kv_events_messages_rejected_total", "Messages that are no batches of the topic, and connections without a publisher.", func(s kvEventsSample) float64 { return float64(s.events.Rejected) }),
	counter("kv_events_gaps_total", "Gaps between live batches.", func(s kvEventsSample) float64 { return float64(s.events.Gaps) }),
	counter("kv_events_restarts_total", "Times that the engine's numbers of batches began anew on one connection.", func(s kvEventsSample) float64 { return float64(s.events.Restarts) }),
	counter("kv_events_replays_total", "Replays that the engine was asked for.", func(s kvEventsSample) float64 { return float64(s.events.Replays) }),
	counter("kv_events_replays_failed_total", "Replays that did not come to their end.", func(s kvEventsSample) float64 { return float64(s.events.Failed) }),
	counters("kv_events_blocks_total", "Blocks in KV events, by what became of them: stored; removed; orphan, stored after a block that is unknown here; unknown, removed and not known here; refused, since the event contradicts itself; ignored, since the block is no prefix by itself or elsewhere; evicted, forgotten here for want of room.", "result", func(s kvEventsSample) map[string]float64 {
		b := s.blocks
		return map[string]float64{
			"stored": float64(b.Stored), "removed": float64(b.Removed), "orphan": float64(b.Orphans), "unknown": float64(b.Unknown),
			"refused": float64(b.Refused), "evicted": float64(b.Evicted), "ignored": float64(s.events.Ignored),
		}
	}),
}
