package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/migrator/market"
)

// migrationSample is what a migrator's moves are read from when it is scraped.
type migrationSample struct {
	market        market.Status
	executor      executor.Stats
	maxConcurrent int // of each direction
}

// A movingMetric is one metric of moves: of tells its value, or by tells one for
// each value of a label.
type migrationMetric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(migrationSample) float64
	label      string
	values     func(migrationSample) map[string]float64
}

// migrationMetrics are the metrics of moves and of the market. All are named
// cascade_migrator_… and carry the labels replica and model.
var migrationMetrics = [...]migrationMetric{
	{name: "residents", help: "Requests that run here, whoever fronts them.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Residents) }},
	{name: "pinned", help: "Residents that may not move.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Pinned) }},
	{name: "pinned_seconds", help: "Time until the last pinned resident has ended, by its max_tokens; 0 when there is none, or one has no limit.", kind: prometheus.GaugeValue,
		value: func(m migrationSample) float64 { return m.market.PinnedSeconds }},
	{name: "moves_offered_total", help: "Requests that were put up for sale.", kind: prometheus.CounterValue, label: "cause", values: func(m migrationSample) map[string]float64 { return byName(m.market.Offered) }},
	{name: "moves_out_total", help: "Requests that have left for another replica.", kind: prometheus.CounterValue, label: "cause", values: func(m migrationSample) map[string]float64 { return byName(m.market.MovedOut) }},
	{name: "moves_out_failed_total", help: "Requests that were sold and have stayed.", kind: prometheus.CounterValue, label: "cause", values: func(m migrationSample) map[string]float64 { return byName(m.market.FailedOut) }},
	{name: "moves_in_total", help: "Requests that have come from another replica.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.MovedIn) }},
	{name: "moves_in_failed_total", help: "Requests that were bought and have not come.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.FailedIn) }},
	{name: "offers_returned_total", help: "Offers that were not sold.", kind: prometheus.CounterValue, label: "reason", values: func(m migrationSample) map[string]float64 { return byName(m.market.Returned) }},
	{name: "offers", help: "Requests for sale.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Offers) }},
	{name: "incoming_tokens", help: "KV tokens that were bought and are not here yet.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Incoming) }},
	{name: "incoming_tokens_per_second", help: "Measured rate of incoming transfers; 0 while unknown.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Throughput) }},
	{name: "transfer_slots", help: "Transfers that may run at once.", kind: prometheus.GaugeValue, label: "direction", values: func(m migrationSample) map[string]float64 {
		return map[string]float64{"send": float64(m.maxConcurrent), "receive": float64(m.maxConcurrent)}
	}},
	{name: "transfer_slots_used", help: "Transfers that run.", kind: prometheus.GaugeValue, label: "direction", values: func(m migrationSample) map[string]float64 {
		return map[string]float64{"send": float64(m.market.Exporting), "receive": float64(m.market.Importing)}
	}},
	{name: "market_messages_sent_total", help: "Messages of the market to peers.", kind: prometheus.CounterValue, label: "kind", values: func(m migrationSample) map[string]float64 { return byName(m.market.Sent) }},
	{name: "market_messages_received_total", help: "Messages of the market from peers.", kind: prometheus.CounterValue, label: "kind", values: func(m migrationSample) map[string]float64 { return byName(m.market.Received) }},
	{name: "market_messages_ignored_total", help: "Messages from peers that made no sense or were too many.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.Ignored) }},
	{name: "summaries_sent_total", help: "Summaries of the own load to peers.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.SummariesSent) }},
	{name: "summaries_received_total", help: "Summaries of peers' load.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.SummariesReceived) }},
	{name: "peers_heard", help: "Peers whose load is known.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.FreshPeers) }},
	{name: "forwards_total", help: "Requests that were placed at a peer before their first token.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.Forwards) }},

	{name: "transfers_sent_total", help: "Transfers out that have ended well.", kind: prometheus.CounterValue, label: "way", values: func(m migrationSample) map[string]float64 { return floats(m.executor.Sent) }},
	{name: "transfers_received_total", help: "Transfers in that have ended well.", kind: prometheus.CounterValue, label: "way", values: func(m migrationSample) map[string]float64 { return floats(m.executor.Received) }},
	{name: "transfers_failed_total", help: "Transfers out that were aborted.", kind: prometheus.CounterValue, label: "reason", values: func(m migrationSample) map[string]float64 { return floats(m.executor.Failed) }},
	{name: "transfers_running", help: "Transfers in progress, both ways.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.executor.Running) }},
	{name: "transfer_bytes_total", help: "KV bytes that have come, as the real engine has them.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Bytes) }},
	{name: "transfer_copied_bytes_total", help: "Bytes that transports have copied.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Copied) }},
	{name: "transfer_rounds_total", help: "Pulls of blocks.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Rounds) }},
	{name: "engine_sessions_abandoned_total", help: "Sessions with the engine that were given up because it did not let go of a request or of blocks.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.SessionsAbandoned) }},
	{name: "rescues_total", help: "Streams that had lost their engine: they went on at another one, or had to end.", kind: prometheus.CounterValue, label: "result", values: func(m migrationSample) map[string]float64 {
		return map[string]float64{"rescued": float64(m.executor.Rescued), "lost": float64(m.executor.Lost)}
	}},
	{name: "transfer_corrupt_blocks_total", help: "Blocks that came with wrong sums, and were not used.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Corrupt) }},
}

// migrationCollector shows one migrator's moves as metrics.
type migrationCollector struct {
	read  func() migrationSample
	descs [len(migrationMetrics)]*prometheus.Desc
	stall *prometheus.Desc
}

var _ prometheus.Collector = (*migrationCollector)(nil)

func newMigrationCollector(read func() migrationSample, replica, model string) *migrationCollector {
	c := &migrationCollector{read: read}
	labels := prometheus.Labels{"replica": replica, "model": model}
	for i, m := range migrationMetrics {
		var variable []string
		if m.values != nil {
			variable = []string{m.label}
		}
		c.descs[i] = prometheus.NewDesc(prometheus.BuildFQName("cascade", "migrator", m.name), m.help, variable, labels)
	}
	c.stall = prometheus.NewDesc("cascade_migrator_stall_seconds", "Time that requests stood still to be handed over, prompted anew or rescued; quantile 1 is the longest.", nil, labels)
	return c
}

// Describe implements prometheus.Collector.
func (c *migrationCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
	out <- c.stall
}

// Collect implements prometheus.Collector.
func (c *migrationCollector) Collect(out chan<- prometheus.Metric) {
	now := c.read()
	for i, m := range migrationMetrics {
		if m.values == nil {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.value(now))
			continue
		}
		for label, v := range m.values(now) {
			out <- prometheus.MustNewConstMetric(c.descs[i], m.kind, v, label)
		}
	}
	longest := map[float64]float64{1: now.executor.LongestStall.Seconds()}
	out <- prometheus.MustNewConstSummary(c.stall, now.executor.Stalls, now.executor.TotalStall.Seconds(), longest)
}

// byName are counts by the name of what they count.
func byName[K interface {
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
