package control

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// collector turns the present state into metrics at every scrape, so that a
// replica, a stage or a node that is gone leaves no metric behind.
type collector struct{ *Control }

var _ prometheus.Collector = collector{}

// The metrics; the package comment has the table.
var (
	planEpoch     = desc("plan_epoch", "Epoch of the model's plan in force.", "model")
	planStages    = desc("plan_stages", "Stages of the model's plan.", "model")
	stageLow      = desc("stage_low_tokens", "Start of the stage's range of lengths.", "model", "stage")
	seenTotal     = desc("requests_seen_total", "Requests that the fronts have counted.", "model")
	requestRate   = desc("request_rate", "Requests per second, from the flow counters.", "model")
	bytesPerToken = desc("bytes_per_token", "Prompt bytes per token that routes and estimator use.", "model")
	estimateError = desc("estimate_error_ratio", "Mean relative error of the length estimate against exact counts.", "model")

	replicaHealthy   = desc("replica_healthy", "1 while the replica takes new requests.", "model", "replica", "stage")
	replicaWeight    = desc("replica_weight", "EDS weight of the replica; 100 is neutral.", "model", "replica")
	replicaRunning   = desc("replica_running", "Requests that produce tokens on the replica.", "model", "replica")
	replicaWaiting   = desc("replica_waiting", "Requests accepted by the replica and not yet producing.", "model", "replica")
	replicaHeld      = desc("replica_held_tokens", "KV tokens in use on the replica.", "model", "replica")
	replicaPromised  = desc("replica_promised_tokens", "Length of what the replica has accepted and not begun.", "model", "replica")
	replicaIteration = desc("replica_iteration_seconds", "Recent mean time between a request's tokens.", "model", "replica")
	replicaReported  = desc("replica_report_timestamp_seconds", "When the replica's last load report came.", "model", "replica")
	replicaDrain     = desc("replica_drain", "1 while somebody wants the replica emptied.", "model", "replica")
	replicaResidents = desc("replica_residents", "Requests that run on the replica, wherever their streams are.", "model", "replica")
	replicaPinned    = desc("replica_pinned", "Requests on the replica that may not move.", "model", "replica")
	replicaStreams   = desc("replica_streams", "Streams of the replica's own clients, wherever their requests run.", "model", "replica")
	replicaProxied   = desc("replica_proxy_requests", "Requests that proxies have in progress at the replica.", "model", "replica")
	replicaDoubted   = desc("replica_distrusted", "1 while the replica's reports are not believed.", "model", "replica")
	proxyReports     = desc("proxy_reports_total", "Load reports of proxies taken in.")
	groupRequests    = desc("group_requests", "Requests that the group's proxies saw end within the last minute.", "group")
	groupFailed      = desc("group_failed_requests", "Those of them that were answered 5xx, or cut.", "group")
	proxyRefused     = desc("proxy_report_streams_refused_total", "Report streams of proxies ended because a report was refused.")
	reportsTotal     = desc("reports_total", "Load reports taken in.")
	reportsRefused   = desc("report_streams_refused_total", "Report streams ended because a report was refused.")

	movesRunning = desc("moves_running", "Moves that were told of within a minute and have not ended.")
	movesEnded   = desc("moves_ended_total", "Moves that have ended.", "cause", "way", "result")
	movesBytes   = desc("moves_bytes_total", "Bytes copied by moves that have ended.", "cause", "way", "result")
	movesStall   = desc("move_stall_seconds", "Time that moves which were done kept their client without a token.", "cause", "way")

	planner        = desc("planner", "1 while this control plane plans for the fleet; of several on one store, one does.")
	shownEpoch     = desc("shown_epoch", "Epoch of the routes that proxies are shown.")
	nodeEpoch      = desc("node_epoch", "Newest epoch whose routes the node has acknowledged; 0: unknown.", "node")
	nodeUp         = desc("node_connected", "1 while the node has a stream open.", "node")
	nodeFenced     = desc("node_fenced", "1 while the node is late and not waited for.", "node")
	observers      = desc("observers", "Clients connected that follow the plans and route nothing.")
	xdsRefused     = desc("xds_refused_total", "xDS streams refused or ended for what their clients did.")
	strangers      = desc("clients_refused_total", "Handshakes and calls of clients that are not who they must be; with a trust domain.")
	slotGeneration = desc("policy_slot_generation", "Generation of a slot's policy on a host, 0 for the native one or none: active, candidate, floor, and the last that was rejected.", "slot", "node", "state")
	slotCalls      = desc("policy_calls_total", "Calls of a generation on a host since it was loaded there.", "slot", "node", "generation")
	slotStarved    = desc("policy_starved_total", "Calls that the native policy had to answer because the machine did not run the module in time.", "slot", "node", "generation")
	slotFaults     = desc("policy_faults_total", "Those of them that the native policy had to answer.", "slot", "node", "generation")

	nodeNACKs = desc("node_nacks_total", "Responses that the node has refused.", "node")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cascade_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range [...]*prometheus.Desc{
		planEpoch, planStages, stageLow, seenTotal, requestRate, bytesPerToken, estimateError,
		replicaHealthy, replicaWeight, replicaRunning, replicaWaiting, replicaHeld, replicaPromised,
		replicaIteration, replicaReported, replicaDrain, replicaResidents, replicaPinned, replicaStreams,
		replicaProxied, replicaDoubted, proxyReports, proxyRefused, groupRequests, groupFailed,
		reportsTotal, reportsRefused, movesRunning, movesEnded, movesBytes, movesStall,
		planner, shownEpoch, nodeEpoch, nodeUp, nodeFenced, nodeNACKs, observers, xdsRefused, strangers,
		slotGeneration, slotCalls, slotFaults, slotStarved,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	out := sink(ch)
	taken, refused := c.fleet.Reports()
	out.counter(xdsRefused, float64(c.xds.Refused()))
	if c.binder != nil {
		out.counter(strangers, float64(c.binder.Refused()))
	}
	out.counter(reportsTotal, float64(taken))
	out.counter(reportsRefused, float64(refused))
	proxied, denied := c.loads.service.Reports()
	out.counter(proxyReports, float64(proxied))
	out.counter(proxyRefused, float64(denied))
	for group, o := range c.loads.book.Outcomes(time.Now()) {
		out.gauge(groupRequests, float64(o.Ended), group)
		out.gauge(groupFailed, float64(o.Failed), group)
	}
	out.moves(c.fleet.MoveTotals(time.Now()))
	if s := c.fleet.Snapshot(); s != nil {
		out.gauge(planner, one(s.Planner.Leads))
		for _, m := range s.Models {
			out.model(m)
		}
	}
	out.policies(c.keeper.reports(time.Now()))
	out.publish(c.publisher.Status())
}

// sink is where metrics go.
type sink chan<- prometheus.Metric

func (s sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sink) counter(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (s sink) model(m fleet.ModelState) {
	s.gauge(planEpoch, float64(m.Plan.Epoch), m.Name)
	s.gauge(planStages, float64(len(m.Plan.Stages)), m.Name)
	for i, stage := range m.Plan.Stages {
		s.gauge(stageLow, float64(stage.Low), m.Name, resources.StageName(i))
	}
	s.counter(seenTotal, float64(m.Seen), m.Name)
	s.gauge(requestRate, rate(m.Flow), m.Name)
	s.gauge(bytesPerToken, m.BytesPerToken.Float(), m.Name)
	s.gauge(estimateError, m.EstimateError, m.Name)
	for _, r := range m.Replicas {
		id, stage := string(r.ID), "none"
		if r.Stage >= 0 {
			stage = resources.StageName(r.Stage)
		}
		s.gauge(replicaHealthy, one(r.Health == resources.Healthy), m.Name, id, stage)
		s.gauge(replicaWeight, float64(r.Weight), m.Name, id)
		s.gauge(replicaRunning, float64(r.Load.Running), m.Name, id)
		s.gauge(replicaWaiting, float64(r.Load.Waiting), m.Name, id)
		s.gauge(replicaHeld, float64(r.Load.Held), m.Name, id)
		s.gauge(replicaPromised, float64(r.Load.Promised), m.Name, id)
		s.gauge(replicaIteration, r.Load.Iteration, m.Name, id)
		s.gauge(replicaDrain, one(len(drainOf(r)) > 0), m.Name, id)
		s.gauge(replicaResidents, float64(r.Residents), m.Name, id)
		s.gauge(replicaPinned, float64(r.Pinned), m.Name, id)
		s.gauge(replicaStreams, float64(r.Streams), m.Name, id)
		s.gauge(replicaDoubted, one(r.Figure.Distrusted != ""), m.Name, id)
		if r.Figure.Visible {
			s.gauge(replicaProxied, float64(r.Figure.Requests), m.Name, id)
		}
		if !r.Reported.IsZero() {
			s.gauge(replicaReported, float64(r.Reported.UnixMilli())/1e3, m.Name, id)
		}
	}
}

func (s sink) moves(ended []fleet.MoveTotal, running int) {
	s.gauge(movesRunning, float64(running))
	for _, t := range ended {
		s.counter(movesEnded, float64(t.Count), t.Cause, t.Way, t.Result)
		s.counter(movesBytes, t.Bytes, t.Cause, t.Way, t.Result)
		if t.Result != fleet.MoveDone {
			continue
		}
		buckets := make(map[float64]uint64, len(fleet.StallBounds))
		for i, bound := range fleet.StallBounds {
			buckets[bound] = t.Stall.Buckets[i]
		}
		s <- prometheus.MustNewConstHistogram(movesStall, t.Stall.Count, t.Stall.Sum, buckets, t.Cause, t.Way)
	}
}

func (s sink) publish(p publish.Status) {
	s.gauge(shownEpoch, float64(p.Epoch))
	watching := 0
	for _, n := range p.Nodes {
		if n.Observer {
			watching += int(one(n.Connected))
			continue
		}
		s.gauge(nodeEpoch, float64(n.Epoch), n.ID)
		s.gauge(nodeUp, one(n.Connected), n.ID)
		s.gauge(nodeFenced, one(n.Fenced), n.ID)
		s.counter(nodeNACKs, float64(n.NACKs), n.ID)
	}
	s.gauge(observers, float64(watching))
}

// one is 1 for true.
func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// rate is a flow's requests per second.
func rate(f policies.Flow) (sum float64) {
	for _, x := range f.Arrivals {
		sum += x
	}
	return sum
}
