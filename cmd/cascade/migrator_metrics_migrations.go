package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/migrator/market"
)

// migrationSample is the state from which a scrape reads the migration metrics.
type migrationSample struct {
	market        market.Status
	executor      executor.Stats
	maxConcurrent int // in each direction
}

// migrationMetric is one metric of migrations: either value returns its value, or values returns
// one value per value of a label.
type migrationMetric struct {
	name, help string
	kind       prometheus.ValueType
	value      func(migrationSample) float64
	label      string
	values     func(migrationSample) map[string]float64
}

// migrationMetrics are the metrics of migrations and of the market. Their names
// begin with cascade_migrator_, and they have the labels replica and model.
var migrationMetrics = [...]migrationMetric{
	{name: "residents", help: "Requests that run here, of any front end.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Residents) }},
	{name: "pinned", help: "Residents that cannot migrate.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Pinned) }},
	{name: "pinned_seconds", help: "Time until the last pinned resident has ended, by its max_tokens; 0 when there is none, or one has no limit.", kind: prometheus.GaugeValue,
		value: func(m migrationSample) float64 { return m.market.PinnedSeconds }},
	{name: "migrations_offered_total", help: "Requests offered for migration.", kind: prometheus.CounterValue, label: "cause", values: func(m migrationSample) map[string]float64 { return byName(m.market.Offered) }},
	{name: "migrations_out_total", help: "Requests that migrated to another replica.", kind: prometheus.CounterValue, label: "cause", values: func(m migrationSample) map[string]float64 { return byName(m.market.MovedOut) }},
	{name: "migrations_out_failed_total", help: "Failed migrations to another replica; the request stayed.", kind: prometheus.CounterValue, label: "cause", values: func(m migrationSample) map[string]float64 { return byName(m.market.FailedOut) }},
	{name: "migrations_in_total", help: "Requests that migrated from another replica.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.MovedIn) }},
	{name: "migrations_in_failed_total", help: "Failed migrations from another replica.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.FailedIn) }},
	{name: "offers_returned_total", help: "Offers without a buyer.", kind: prometheus.CounterValue, label: "reason", values: func(m migrationSample) map[string]float64 { return byName(m.market.Returned) }},
	{name: "offers", help: "Current offers.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Offers) }},
	{name: "incoming_tokens", help: "KV tokens of accepted migrations that have not arrived.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Incoming) }},
	{name: "incoming_tokens_per_second", help: "Measured rate of incoming transfers; 0 while unknown.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.Throughput) }},
	{name: "transfers_max_concurrent", help: "Limit of concurrent transfers.", kind: prometheus.GaugeValue, label: "direction", values: func(m migrationSample) map[string]float64 {
		return map[string]float64{"send": float64(m.maxConcurrent), "receive": float64(m.maxConcurrent)}
	}},
	{name: "transfers_concurrent", help: "Concurrent transfers.", kind: prometheus.GaugeValue, label: "direction", values: func(m migrationSample) map[string]float64 {
		return map[string]float64{"send": float64(m.market.Exporting), "receive": float64(m.market.Importing)}
	}},
	{name: "market_messages_sent_total", help: "Market messages sent to peers.", kind: prometheus.CounterValue, label: "kind", values: func(m migrationSample) map[string]float64 { return byName(m.market.Sent) }},
	{name: "market_messages_received_total", help: "Market messages received from peers.", kind: prometheus.CounterValue, label: "kind", values: func(m migrationSample) map[string]float64 { return byName(m.market.Received) }},
	{name: "market_messages_ignored_total", help: "Invalid or excess market messages from peers.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.Ignored) }},
	{name: "summaries_sent_total", help: "Load summaries sent to peers.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.SummariesSent) }},
	{name: "summaries_received_total", help: "Load summaries received from peers.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.SummariesReceived) }},
	{name: "peers_known", help: "Peers with a current load summary.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.market.FreshPeers) }},
	{name: "forwards_total", help: "Requests placed at a peer before their first token.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.market.Forwards) }},

	{name: "transfers_sent_total", help: "Completed transfers to other replicas.", kind: prometheus.CounterValue, label: "method", values: func(m migrationSample) map[string]float64 { return floats(m.executor.Sent) }},
	{name: "transfers_received_total", help: "Completed transfers from other replicas.", kind: prometheus.CounterValue, label: "method", values: func(m migrationSample) map[string]float64 { return floats(m.executor.Received) }},
	{name: "transfers_failed_total", help: "Aborted transfers to other replicas.", kind: prometheus.CounterValue, label: "reason", values: func(m migrationSample) map[string]float64 { return floats(m.executor.Failed) }},
	{name: "transfers_running", help: "Transfers in progress, in both directions.", kind: prometheus.GaugeValue, value: func(m migrationSample) float64 { return float64(m.executor.Running) }},
	{name: "transfer_bytes_total", help: "KV bytes received, at the real engine's size.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Bytes) }},
	{name: "transfer_copied_bytes_total", help: "Bytes copied by transports.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Copied) }},
	{name: "transfer_rounds_total", help: "Pulls of blocks.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Rounds) }},
	{name: "engine_sessions_abandoned_total", help: "Engine sessions abandoned because the engine did not release a request or blocks.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.SessionsAbandoned) }},
	{name: "rescues_total", help: "Streams that lost their engine, by whether they continued at another one.", kind: prometheus.CounterValue, label: "result", values: func(m migrationSample) map[string]float64 {
		return map[string]float64{"rescued": float64(m.executor.Rescued), "lost": float64(m.executor.Lost)}
	}},
	{name: "transfer_corrupt_blocks_total", help: "Received blocks with a wrong checksum, which were not used.", kind: prometheus.CounterValue, value: func(m migrationSample) float64 { return float64(m.executor.Corrupt) }},
}

// migrationCollector collects the migration metrics of one migrator.
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
	c.stall = prometheus.NewDesc("cascade_migrator_stall_seconds", "Time without tokens during a migration or rescue; quantile 1 is the longest.", nil, labels)
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

// byName returns counts by the names of their keys.
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
