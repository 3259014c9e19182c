// Package control is the control plane as one daemon: the fleet (package
// fleet) plans, the publisher (publish) shows the plans, the cache answers
// proxies over ADS and over a service for each type, delta and SotW (serve), and
// the same gRPC port takes in load reports and, where the estimator is ext_proc,
// answers length questions. An HTTP port on loopback tells operators.
//
// It joins and decides nothing of its own. It reads no flag, file or
// environment; that is cmd's. Invariant: it listens in plain text on loopback
// only, whatever the configuration says.
//
// HTTP: /status (JSON, type Status), /metrics, /healthz (the process lives),
// /readyz (the first plan is published). gRPC health answers like /readyz.
// GET /migrations?since=TIME&limit=N is the moves of requests (type Migrations).
// POST /drain?replica=ID and POST /undrain?replica=ID empty a replica and bring
// it back (type Order; 404: unknown, 409: the last of its model, or drained by
// the fleet file, 503: not stored); they want AdminHeader.
//
// Metrics, all under cascade_ (those of the length service are in its package):
//
//	plan_epoch                        model                 epoch of the plan in force
//	plan_stages                       model                 stages of it
//	stage_low_tokens                  model, stage          where the stage's range begins
//	requests_seen_total               model                 requests that fronts counted
//	request_rate                      model                 requests/s now
//	bytes_per_token                   model                 as routes and estimator use it
//	estimate_error_ratio              model                 mean relative error of estimates
//	replica_healthy                   model, replica, stage 1: takes new requests
//	replica_weight                    model, replica        EDS weight; 100 is neutral
//	replica_running, replica_waiting  model, replica        requests
//	replica_held_tokens               model, replica        KV tokens in use
//	replica_promised_tokens           model, replica        accepted and not begun
//	replica_iteration_seconds         model, replica        mean time between tokens
//	replica_report_timestamp_seconds  model, replica        last load report
//	replica_drain                     model, replica        1: somebody wants it emptied
//	replica_residents                 model, replica        requests that run there
//	replica_pinned                    model, replica        those that may not move
//	replica_streams                   model, replica        streams of its own clients
//	replica_proxy_requests            model, replica        in progress at its proxies
//	replica_distrusted                model, replica        1: its reports are not believed
//	moves_running                                           told of and not ended
//	moves_ended_total                 cause, way, result    done or aborted
//	moves_bytes_total                 cause, way, result    copied by those
//	move_stall_seconds                cause, way            histogram, of those done
//	reports_total                                           load reports taken in
//	report_streams_refused_total                            report streams refused
//	proxy_reports_total                                     load reports of proxies
//	proxy_report_streams_refused_total                      their streams refused
//	group_requests                    group                 ended within a minute
//	group_failed_requests             group                 of those, failed
//	planner                                                 1: this one plans
//	shown_epoch                                             epoch that proxies are shown
//	observers                                               clients that follow and route nothing
//	node_epoch                        node                  newest epoch acknowledged
//	node_connected, node_fenced       node                  1: yes
//	node_nacks_total                  node                  responses refused
//	xds_refused_total                                       xDS streams refused or ended by a guard
//	clients_refused_total                                   clients not who they must be; with a trust domain
package control
