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
// Metrics are described in metrics.go, and listed with all others in docs/reference/metrics.md.
package control
