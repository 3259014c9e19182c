package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/migrator/market"
)

// moving is what a migrator's moves are read from when it is scraped.
type moving struct {
	market market.Status
	mover  executor.Stats
	slots  int // of each direction
}

// A movingMetric is one metric of moves: of tells its value, or by tells one for
// each value of a label.
type movingMetric struct {
	name, help string
	kind       prometheus.ValueType
	of         func(moving) float64
	label      string
	by         func(moving) map[string]float64
}

// movingMetrics are the metrics of moves and of the market. All are named
// cascade_migrator_… and carry the labels replica and model.
var movingMetrics = [...]movingMetric{
	{name: "residents", help: "Requests that run here, whoever fronts them.", kind: prometheus.GaugeValue, of: func(m moving) float64 { return float64(m.market.Residents) }},
	{name: "pinned", help: "Residents that may not move.", kind: prometheus.GaugeValue, of: func(m moving) float64 { return float64(m.market.Pinned) }},
	{name: "pinned_seconds", help: "Time until the last pinned resident has ended, by its max_tokens; 0 when there is none, or one has no limit.", kind: prometheus.GaugeValue,
		of: func(m moving) float64 { return m.market.PinnedSeconds }},
	{name: "moves_offered_total", help: "Requests that were put up for sale.", kind: prometheus.CounterValue, label: "cause", by: func(m moving) map[string]float64 { return named(m.market.Offered) }},
	{name: "moves_out_total", help: "Requests that have left for another replica.", kind: prometheus.CounterValue, label: "cause", by: func(m moving) map[string]float64 { return named(m.market.MovedOut) }},
	{name: "moves_out_failed_total", help: "Requests that were sold and have stayed.", kind: prometheus.CounterValue, label: "cause", by: func(m moving) map[string]float64 { return named(m.market.FailedOut) }},
	{name: "moves_in_total", help: "Requests that have come from another replica.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.market.MovedIn) }},
	{name: "moves_in_failed_total", help: "Requests that were bought and have not come.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.market.FailedIn) }},
	{name: "offers_returned_total", help: "Offers that were not sold.", kind: prometheus.CounterValue, label: "reason", by: func(m moving) map[string]float64 { return named(m.market.Returned) }},
	{name: "offers", help: "Requests for sale.", kind: prometheus.GaugeValue, of: func(m moving) float64 { return float64(m.market.Offers) }},
	{name: "incoming_tokens", help: "KV tokens that were bought and are not here yet.", kind: prometheus.GaugeValue, of: func(m moving) float64 { return float64(m.market.Incoming) }},
	{name: "incoming_tokens_per_second", help: "Measured rate of incoming transfers; 0 while unknown.", kind: prometheus.GaugeValue, of: func(m moving) float64 { return float64(m.market.Throughput) }},
	{name: "transfer_slots", help: "Transfers that may run at once.", kind: prometheus.GaugeValue, label: "direction", by: func(m moving) map[string]float64 {
		return map[string]float64{"send": float64(m.slots), "receive": float64(m.slots)}
	}},
	{name: "transfer_slots_used", help: "Transfers that run.", kind: prometheus.GaugeValue, label: "direction", by: func(m moving) map[string]float64 {
		return map[string]float64{"send": float64(m.market.Exporting), "receive": float64(m.market.Importing)}
	}},
	{name: "market_messages_sent_total", help: "Messages of the market to peers.", kind: prometheus.CounterValue, label: "kind", by: func(m moving) map[string]float64 { return named(m.market.Sent) }},
	{name: "market_messages_received_total", help: "Messages of the market from peers.", kind: prometheus.CounterValue, label: "kind", by: func(m moving) map[string]float64 { return named(m.market.Received) }},
	{name: "market_messages_ignored_total", help: "Messages from peers that made no sense or were too many.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.market.Ignored) }},
	{name: "summaries_sent_total", help: "Summaries of the own load to peers.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.market.SummariesSent) }},
	{name: "summaries_received_total", help: "Summaries of peers' load.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.market.SummariesReceived) }},
	{name: "peers_heard", help: "Peers whose load is known.", kind: prometheus.GaugeValue, of: func(m moving) float64 { return float64(m.market.Heard) }},
	{name: "forwards_total", help: "Requests that were placed at a peer before their first token.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.market.Forwards) }},

	{name: "transfers_sent_total", help: "Transfers out that have ended well.", kind: prometheus.CounterValue, label: "way", by: func(m moving) map[string]float64 { return floats(m.mover.Sent) }},
	{name: "transfers_received_total", help: "Transfers in that have ended well.", kind: prometheus.CounterValue, label: "way", by: func(m moving) map[string]float64 { return floats(m.mover.Received) }},
	{name: "transfers_failed_total", help: "Transfers out that were aborted.", kind: prometheus.CounterValue, label: "reason", by: func(m moving) map[string]float64 { return floats(m.mover.Failed) }},
	{name: "transfers_running", help: "Transfers in progress, both ways.", kind: prometheus.GaugeValue, of: func(m moving) float64 { return float64(m.mover.Running) }},
	{name: "transfer_bytes_total", help: "KV bytes that have come, as the real engine has them.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.mover.Bytes) }},
	{name: "transfer_copied_bytes_total", help: "Bytes that transports have copied.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.mover.Copied) }},
	{name: "transfer_rounds_total", help: "Pulls of blocks.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.mover.Rounds) }},
	{name: "engine_sessions_abandoned_total", help: "Sessions with the engine that were given up because it did not let go of a request or of blocks.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.mover.Abandoned) }},
	{name: "rescues_total", help: "Streams that had lost their engine: they went on at another one, or had to end.", kind: prometheus.CounterValue, label: "result", by: func(m moving) map[string]float64 {
		return map[string]float64{"rescued": float64(m.mover.Rescued), "lost": float64(m.mover.Lost)}
	}},
	{name: "transfer_corrupt_blocks_total", help: "Blocks that came with wrong sums, and were not used.", kind: prometheus.CounterValue, of: func(m moving) float64 { return float64(m.mover.Corrupt) }},
}

// movingCollector shows one migrator's moves as metrics.
type movingCollector struct {
	read  func() moving
	descs [len(movingMetrics)]*prometheus.Desc
	stall *prometheus.Desc
}

var _ prometheus.Collector = (*movingCollector)(nil)

func newMovingCollector(read func() moving, replica, model string) *movingCollector {
	c := &movingCollector{read: read}
	labels := prometheus.Labels{"replica": replica, "model": model}
	for i, m := range movingMetrics {
		var variable []string
		if m.by != nil {
			variable = []string{m.label}
		}
		c.descs[i] = prometheus.NewDesc(prometheus.BuildFQName("cascade", "migrator", m.name), m.help, variable, labels)
	}
	c.stall = prometheus.NewDesc("cascade_migrator_stall_seconds", "Time that requests stood still to be handed over, prompted anew or rescued; quantile 1 is the longest.", nil, labels)
	return c
}

// Describe implements prometheus.Collector.
func (c *movingCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
	out <- c.stall
}

// Collect implements prometheus.Collector.
func (c *movingCollector) Collect(out chan<- prometheus.Metric) {
	now := c.read()
	for i, m := range movingMetrics {
		if m.by == nil {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.of(now))
			continue
		}
		for label, v := range m.by(now) {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, v, label)
		}
	}
	longest := map[float64]float64{1: now.mover.LongestStall.Seconds()}
	out <- prometheus.MustNewConstSummary(c.stall, now.mover.Stalls, now.mover.Stall.Seconds(), longest)
}

// named are counts by the name of what they count.
func named[K interface {
	comparable
	fmt.Stringer
}](counts map[K]uint64) map[string]float64 {
	out := make(map[string]float64, len(counts))
	for k, n := range counts {
		out[k.String()] += float64(n)
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
