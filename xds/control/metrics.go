package control

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/fleet"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/policyslots"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// collector turns the present state into metrics at every scrape, so that a
// replica, a stage or a node that is gone leaves no metric behind.
type collector struct{ *Control }

var _ prometheus.Collector = collector{}

// The metrics; the package comment lists them.
var (
	planEpoch     = desc("plan_epoch", "Epoch of the model's plan in force.", "model")
	planStages    = desc("plan_stages", "Stages of the model's plan.", "model")
	stageLow      = desc("stage_low_tokens", "Start of the stage's range of lengths.", "model", "stage")
	seenTotal     = desc("requests_seen_total", "Requests that the front ends have counted, the same at every control plane of a store: aggregate with max.", "model")
	refusedTotal  = desc("requests_refused_total", "Requests that front ends have answered with 429 since this control plane started, as it heard: aggregate with max.", "model")
	queueing      = desc("queueing_seconds", "How long a request waits for its first token, from the requests that wait and those that are served.", "model")
	arrivals      = desc("arrivals_per_second", "Requests that arrive per second, refused ones included, over the last 8 s.", "model")
	desired       = desc("desired_replicas", "Replicas that the model should have for the present demand; absent until it is known. An autoscaler follows it; of several control planes, take the max.", "model")
	current       = desc("current_replicas", "Replicas that the model has, ready or not, without those that are drained, and prefill replicas.", "model")
	stageDesired  = desc("stage_desired_replicas", "Replicas that each stage of the plan in force needs at this moment, undamped. The sum may exceed desired_replicas: the planner merges stages.", "model", "stage")
	bytesPerToken = desc("bytes_per_token", "Prompt bytes per token that routes and estimators use.", "model")
	estimateError = desc("estimate_error_ratio", "Mean relative error of the length estimate against exact counts.", "model")

	replicaHealthy    = desc("replica_healthy", "1 while the replica takes new requests.", "model", "replica", "stage")
	replicaHealth     = desc("replica_health", "1 for the present health of the replica and its reason.", "model", "replica", "health", "reason")
	replicaChanges    = desc("replica_health_changes_total", "How often the replica's health became this one, as this control plane saw it.", "model", "replica", "health")
	replicaWeight     = desc("replica_weight", "EDS weight of the replica; 100 is neutral.", "model", "replica")
	replicaRunning    = desc("replica_running", "Requests that produce tokens on the replica.", "model", "replica")
	replicaWaiting    = desc("replica_waiting", "Requests that the replica has accepted and that produce no tokens yet.", "model", "replica")
	replicaHeld       = desc("replica_held_tokens", "KV tokens in use on the replica.", "model", "replica")
	replicaPromised   = desc("replica_promised_tokens", "Length of the requests that the replica has accepted and not begun.", "model", "replica")
	replicaIteration  = desc("replica_iteration_seconds", "Recent mean time between a request's tokens.", "model", "replica")
	replicaReported   = desc("replica_report_timestamp_seconds", "Time of the replica's last load report.", "model", "replica")
	replicaDrain      = desc("replica_drain", "1 while the replica is to be drained.", "model", "replica")
	replicaResidents  = desc("replica_residents", "Requests that run on the replica, wherever their streams are.", "model", "replica")
	replicaPinned     = desc("replica_pinned", "Requests on the replica that cannot migrate.", "model", "replica")
	replicaStreams    = desc("replica_streams", "Streams of the replica's own clients, wherever their requests run.", "model", "replica")
	replicaProxied    = desc("replica_proxy_requests", "Requests that proxies have in progress at the replica.", "model", "replica")
	replicaDistrusted = desc("replica_distrusted", "1 while the replica's reports are implausible and ignored.", "model", "replica")
	proxyReports      = desc("proxy_reports_total", "Load reports of proxies accepted.")
	groupRequests     = desc("group_requests", "Requests that the group's proxies saw end within the last minute.", "group")
	groupFailed       = desc("group_failed_requests", "Requests among group_requests that were answered 5xx or cut.", "group")
	proxyRefused      = desc("proxy_report_streams_refused_total", "Report streams of proxies ended because a report was refused.")
	reportsTotal      = desc("reports_total", "Load reports accepted.")
	reportsRefused    = desc("report_streams_refused_total", "Report streams ended because a report was refused.")

	migrationsRunning = desc("migrations_running", "Migrations that were reported within the last minute and have not ended.")
	migrationsEnded   = desc("migrations_total", "Migrations that have ended.", "cause", "method", "result")
	migrationBytes    = desc("migration_bytes_total", "Bytes copied by migrations that have ended.", "cause", "method", "result")
	migrationStall    = desc("migration_stall_seconds", "Time for which completed migrations kept their clients without a token.", "cause", "method")

	faultPresent   = desc("fault", "1 for each present fault; GET /status explains them.", "kind", "object")
	leaderChanges  = desc("leader_changes_total", "How often the planning lease went from one control plane to another, as this one saw it.")
	plannerHere    = desc("planner", "1 while this control plane holds the planning lease; of several on one store, one does.")
	publishedEpoch = desc("published_epoch", "Epoch of the routes that every group of proxies has been sent.")
	nodeEpoch      = desc("node_epoch", "Newest epoch whose routes the node has acknowledged; 0: unknown.", "node")
	nodeUp         = desc("node_connected", "1 while the node has a stream open.", "node")
	nodeFenced     = desc("node_fenced", "1 while the node is late and fenced: rollouts do not wait for it.", "node")
	observers      = desc("observers", "Clients connected that follow the plans and route nothing.")
	xdsRefused     = desc("xds_refused_total", "xDS streams refused or ended because of a limit or an invalid request.")
	clientsRefused = desc("clients_refused_total", "Handshakes and calls refused because the client's certificate does not match; with a trust domain.")
	secretsRefused = desc("secrets_refused_total", "Requests for secrets of nodes that are not listed proxies with a certificate.")
	slotGeneration = desc("policy_slot_generation", "Generation of a slot's policy on a host, 0 for the native one or none: active, candidate, floor, and the last that was rejected.", "slot", "node", "state")
	slotCalls      = desc("policy_calls_total", "Calls of a generation on a host since it was loaded there.", "slot", "node", "generation")
	slotStarved    = desc("policy_starved_total", "Calls that the native policy answered because the module timed out while descheduled.", "slot", "node", "generation")
	slotFaults     = desc("policy_faults_total", "Calls that the native policy answered because the module failed.", "slot", "node", "generation")

	rolloutStopped = desc("rollout_stopped", "1 while a plan goes no further because a proxy refuses it.")
	nodeRefusing   = desc("node_refusing", "1 while the node refuses what other nodes of its group run.", "node")
	nodeNACKs      = desc("node_nacks_total", "Responses that the node has refused.", "node")
)

// described lists the metrics above.
var described []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("cascade_"+name, help, labels, nil)
	described = append(described, d)
	return d
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range described {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	out := metricSink(ch)
	taken, refused := c.fleet.ReportCounts()
	out.counter(xdsRefused, float64(c.xds.Refused()))
	if c.auth != nil {
		out.counter(clientsRefused, float64(c.auth.Refused()))
	}
	out.counter(secretsRefused, float64(c.secretsRefused.Load()))
	out.counter(reportsTotal, float64(taken))
	out.counter(reportsRefused, float64(refused))
	proxied, denied := c.loads.service.Reports()
	out.counter(proxyReports, float64(proxied))
	out.counter(proxyRefused, float64(denied))
	for group, o := range c.loads.book.Outcomes(time.Now()) {
		out.gauge(groupRequests, float64(o.Ended), group)
		out.gauge(groupFailed, float64(o.Failed), group)
	}
	out.migrations(c.fleet.MigrationTotals(time.Now()))
	if s := c.fleet.Snapshot(); s != nil {
		out.gauge(plannerHere, boolValue(s.Leadership.Leading))
		out.counter(leaderChanges, float64(s.Leadership.Changes))
		for _, m := range s.Models {
			out.model(m)
		}
	}
	seen := c.observe()
	out.faults(seen.status.Faults)
	out.policies(c.slots.reports(time.Now()))
	out.publish(seen.published)
}

// metricSink is where metrics are written.
type metricSink chan<- prometheus.Metric

func (s metricSink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s metricSink) counter(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (s metricSink) model(m fleet.ModelState) {
	s.gauge(planEpoch, float64(m.Plan.Epoch), m.Name)
	s.gauge(planStages, float64(len(m.Plan.Stages)), m.Name)
	for i, stage := range m.Plan.Stages {
		s.gauge(stageLow, float64(stage.Low), m.Name, resources.StageName(i))
	}
	s.counter(seenTotal, float64(m.Seen), m.Name)
	s.gauge(arrivals, m.Demand.Rate, m.Name)
	s.counter(refusedTotal, float64(m.Demand.Refused), m.Name)
	s.gauge(queueing, m.Demand.Queue.Seconds(), m.Name)
	s.scaling(m)
	s.gauge(bytesPerToken, m.BytesPerToken.Float(), m.Name)
	s.gauge(estimateError, m.EstimateError, m.Name)
	for _, r := range m.Replicas {
		id, stage := string(r.ID), "none"
		if r.Stage >= 0 {
			stage = resources.StageName(r.Stage)
		}
		s.gauge(replicaHealthy, boolValue(r.Health == resources.Healthy), m.Name, id, stage)
		s.gauge(replicaHealth, 1, m.Name, id, r.Health.String(), r.Reason)
		for health, n := range r.HealthChanges {
			s.counter(replicaChanges, float64(n), m.Name, id, resources.Health(health).String())
		}
		s.gauge(replicaWeight, float64(r.Weight), m.Name, id)
		s.gauge(replicaRunning, float64(r.Load.Running), m.Name, id)
		s.gauge(replicaWaiting, float64(r.Load.Waiting), m.Name, id)
		s.gauge(replicaHeld, float64(r.Load.Held), m.Name, id)
		s.gauge(replicaPromised, float64(r.Load.Promised), m.Name, id)
		s.gauge(replicaIteration, r.Load.Iteration, m.Name, id)
		s.gauge(replicaDrain, boolValue(len(drainOf(r)) > 0), m.Name, id)
		s.gauge(replicaResidents, float64(r.Residents), m.Name, id)
		s.gauge(replicaPinned, float64(r.Pinned), m.Name, id)
		s.gauge(replicaStreams, float64(r.Streams), m.Name, id)
		s.gauge(replicaDistrusted, boolValue(r.Estimate.Distrusted != ""), m.Name, id)
		if r.Estimate.Visible {
			s.gauge(replicaProxied, float64(r.Estimate.Requests), m.Name, id)
		}
		if !r.Reported.IsZero() {
			s.gauge(replicaReported, float64(r.Reported.UnixMilli())/1e3, m.Name, id)
		}
	}
}

// scaling writes how many replicas a model should have, once that has been worked out: autoscalers do
// nothing while a metric is absent.
func (s metricSink) scaling(m fleet.ModelState) {
	if m.Scaling.Desired == 0 {
		return
	}
	s.gauge(desired, float64(m.Scaling.Desired), m.Name)
	s.gauge(current, float64(m.Scaling.Present), m.Name)
	for i, n := range m.Scaling.Stages {
		s.gauge(stageDesired, float64(n.Replicas), m.Name, resources.StageName(i))
	}
}

// faults writes a sample for each fault, once for each kind and object.
func (s metricSink) faults(list []Fault) {
	type key struct{ kind, object string }
	seen := make(map[key]bool, len(list))
	for _, f := range list {
		if k := (key{f.Kind, f.Object}); !seen[k] {
			seen[k] = true
			s.gauge(faultPresent, 1, f.Kind, f.Object)
		}
	}
}

func (s metricSink) migrations(ended []fleetstate.MigrationTotal, running int) {
	s.gauge(migrationsRunning, float64(running))
	for _, t := range ended {
		s.counter(migrationsEnded, float64(t.Count), t.Cause, t.Method, t.Result)
		s.counter(migrationBytes, t.Bytes, t.Cause, t.Method, t.Result)
		if t.Result != loadreport.MigrationDone {
			continue
		}
		buckets := make(map[float64]uint64, len(fleetstate.StallBounds))
		for i, bound := range fleetstate.StallBounds {
			buckets[bound] = t.Stall.Buckets[i]
		}
		s <- prometheus.MustNewConstHistogram(migrationStall, t.Stall.Count, t.Stall.Sum, buckets, t.Cause, t.Method)
	}
}

func (s metricSink) publish(p publish.Status) {
	s.gauge(publishedEpoch, float64(p.Epoch))
	s.gauge(rolloutStopped, boolValue(p.Stopped))
	watching := 0
	for _, n := range p.Nodes {
		if n.Observer {
			watching += int(boolValue(n.Connected))
			continue
		}
		s.gauge(nodeEpoch, float64(n.Epoch), n.ID)
		s.gauge(nodeUp, boolValue(n.Connected), n.ID)
		s.gauge(nodeFenced, boolValue(n.Fenced), n.ID)
		s.counter(nodeNACKs, float64(n.NACKs), n.ID)
		s.gauge(nodeRefusing, boolValue(n.Refusing), n.ID)
	}
	s.gauge(observers, float64(watching))
}

// boolValue returns 1 for true.
func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// arrivalRate returns a flow's requests per second.
func arrivalRate(f policies.Flow) (sum float64) {
	for _, x := range f.Arrivals {
		sum += x
	}
	return sum
}

// policies writes the metrics of policy slots. Of replicas that share a host
// only the first one is counted, so that sums are right.
func (s metricSink) policies(reports []policyslots.Report) {
	shared := make(map[[2]string]bool)
	for _, r := range reports {
		for _, slot := range r.Statuses {
			if slot.Host != "" {
				key := [2]string{slot.Host, string(slot.Kind)}
				if shared[key] {
					continue
				}
				shared[key] = true
			}
			kind := string(slot.Kind)
			s.gauge(slotGeneration, float64(slot.Active), kind, r.Node, "active")
			s.gauge(slotGeneration, float64(slot.Candidate), kind, r.Node, "candidate")
			s.gauge(slotGeneration, float64(slot.Floor), kind, r.Node, "floor")
			rejected := lifecycle.Native
			for _, l := range slot.Modules {
				if l.Phase == lifecycle.Rejected {
					rejected = max(rejected, l.Generation)
				}
				generation := strconv.FormatUint(uint64(l.Generation), 10)
				s.counter(slotCalls, float64(l.Calls), kind, r.Node, generation)
				s.counter(slotFaults, float64(l.Faults), kind, r.Node, generation)
				s.counter(slotStarved, float64(l.Starved), kind, r.Node, generation)
			}
			s.gauge(slotGeneration, float64(rejected), kind, r.Node, "rejected")
		}
	}
}
