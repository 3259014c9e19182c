// Package control is the control plane as one daemon. The fleet (package fleet)
// plans, the publisher (publish) rolls the plans out, and the cache answers
// proxies over ADS and over one service per type, delta and SotW (server). The
// same gRPC port takes load reports, serves policy modules and, where the
// estimator is ext_proc, answers length requests. An admin HTTP server on
// loopback is for operators.
//
// A Control connects these packages and makes no decisions of its own. It reads
// no flag, file or environment; package cmd does. Invariant: it listens in
// plain text on loopback only, whatever the configuration says.
//
// Admin endpoints, in the files admin*.go. Those that change something require
// AdminHeader:
//
//	GET  /, /console/                          the web page for operators; see package console
//	GET  /status                               type Status
//	GET  /devices                              type Devices
//	GET  /migrations?since=TIME&limit=N        type Migrations
//	POST /drain?replica=ID, /undrain           type DrainResult; 404: unknown replica, 409: the last one of its
//	                                           model, or drained by the fleet file, 503: not stored
//	POST /replicas/confirm?digest=DIGEST       type Status; 409: another list, or none, waits to be confirmed
//	GET  /plan/history?model=NAME              type PlanHistory
//	POST /plan/pin, /plan/unpin, /plan/rollback  ?model=NAME&epoch=N&by=NAME: type PlanHistory
//	GET  /policies?slot=KIND                   type Policies
//	GET  /policies/records?slot=KIND           recorded calls of a slot of this process
//	POST /policies/push                        a module with its signature: type Policies
//	POST /policies/goal, /policies/rollback    ?slot=KIND: type Policies
//	GET  /metrics, /healthz, /readyz           metrics; the process lives; the first plan is published, every model
//	                                           has a replica that takes requests, and the store works; else 503 with the reasons
//
// The gRPC health service says that the first plan is published: proxies keep a control
// plane whose store fails, because it still publishes the health of the replicas.
//
// Metrics, all under cascade_ (those of the length service are in its package):
//
//	plan_epoch                        model                 epoch of the plan in force
//	plan_stages                       model                 stages of it
//	stage_low_tokens                  model, stage          start of the stage's range
//	requests_seen_total               model                 requests that front ends counted; of several control planes take the max
//	requests_refused_total            model                 requests answered with 429; of several control planes take the max
//	queueing_seconds                  model                 wait for the first token
//	arrivals_per_second               model                 requests/s now, refused ones included
//	desired_replicas                  model                 replicas that the model should have; absent until known
//	current_replicas                  model                 replicas that it has, without drained and prefill replicas
//	stage_desired_replicas            model, stage          replicas that the stage needs now, undamped
//	bytes_per_token                   model                 used by routes and estimators
//	estimate_error_ratio              model                 mean relative error of estimates
//	replica_healthy                   model, replica, stage 1: takes new requests
//	replica_health                    model, replica, health, reason  1: the present one
//	replica_health_changes_total      model, replica, health  changes to this health
//	replica_weight                    model, replica        EDS weight; 100 is neutral
//	replica_running, replica_waiting  model, replica        requests
//	replica_held_tokens               model, replica        KV tokens in use
//	replica_promised_tokens           model, replica        accepted and not begun
//	replica_iteration_seconds         model, replica        mean time between tokens
//	replica_report_timestamp_seconds  model, replica        last load report
//	replica_drain                     model, replica        1: draining
//	replica_residents                 model, replica        requests that run there
//	replica_pinned                    model, replica        those that cannot migrate
//	replica_streams                   model, replica        streams of its own clients
//	replica_proxy_requests            model, replica        in progress at its proxies
//	replica_distrusted                model, replica        1: its reports are implausible
//	migrations_running                                      reported and not ended
//	migrations_total                  cause, method, result    done or aborted
//	migration_bytes_total             cause, method, result    copied by those
//	migration_stall_seconds           cause, method            histogram, of those done
//	reports_total                                           load reports accepted
//	report_streams_refused_total                            report streams refused
//	proxy_reports_total                                     load reports of proxies
//	proxy_report_streams_refused_total                      their streams refused
//	group_requests                    group                 ended within a minute
//	group_failed_requests             group                 of those, failed
//	fault                             kind, object          1: present; /status explains it
//	leader_changes_total                                    changes of the leader
//	planner                                                 1: this control plane plans
//	published_epoch                                         epoch that every group of proxies was sent
//	observers                                               clients that follow plans and route nothing
//	node_epoch                        node                  newest epoch acknowledged
//	node_connected, node_fenced       node                  1: yes
//	rollout_stopped                                         1: a plan goes no further because a proxy refuses it
//	node_refusing                     node                  1: it refuses what others of its group run
//	node_nacks_total                  node                  responses refused
//	policy_slot_generation            slot, node, state     generation of a slot on a host
//	policy_calls_total                slot, node, generation  calls since it was loaded
//	policy_faults_total               slot, node, generation  of those, faults of the module
//	policy_starved_total              slot, node, generation  of those, timed out while descheduled
//	xds_refused_total                                       xDS streams refused or ended because of a limit
//	secrets_refused_total                                   requests for secrets by nodes that may not have them
//	audit_records_total, audit_records_dropped_total        written to the audit log, and lost; with Config.Audit
//	clients_refused_total                                   clients without a matching certificate; with a trust domain
package control
