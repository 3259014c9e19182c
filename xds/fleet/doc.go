// Package fleet knows the replicas and makes the plans: it takes in the
// configured list and the migrators' load reports, sums flows, plans every
// period, repairs a plan when a stage loses its last ready replica or an
// operator drains one, moves boundaries to where the replicas propose them
// (Rules.Refine), and hands out what proxies shall see. It remembers the last
// moves of requests that migrators told of.
// It keeps what was decided about plans, and why; operators can drain a replica,
// pin a plan and go back to an earlier one.
//
// Several control planes may share a store (Rules.Shared): one plans, the one
// that holds the lease (package lease), and all show what is stored and
// configured, so that they show the same.
//
// It is not the xDS server: package publish shows plans to proxies, and
// package store keeps them. The deciding part is State, a pure state machine;
// Fleet is the goroutine around it.
//
// Invariants: what is published was stored before; a plan in force is valid
// and its epoch only grows; bad input (a report, a list, a store's content)
// changes nothing. A new plan moves no running request by itself: it only
// decides where new ones go.
package fleet
