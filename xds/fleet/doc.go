// Package fleet runs a fleet of replicas: it reads the configured list and the
// migrators' load reports, plans every period, repairs plans, executes operators'
// orders, stores every plan, and publishes the state that proxies should see.
//
// A Fleet is the goroutine around a State, a pure state machine: the Fleet feeds it
// events and carries its effects out. Its parts are
// policies/planner (one model's plan), policies/weights, xds/internal/fleetstate (replicas, orders, history)
// and xds/internal/reports. What may take seconds runs in goroutines of its own and comes back as an event: a write of
// the store, and a Planning, which asks modules and the site's rules.
//
// Several control planes may share a store (Rules.Shared): the one that holds the lease
// (store.LeaseMachine) plans, and all of them publish what is stored and configured, so that
// they publish the same.
//
// Package publish serves the published state to proxies, and package store keeps the
// plans.
//
// Invariants: everything that is published was stored before; a plan in force is valid
// and its epoch only grows; bad input (a report, a list, a stored object) changes
// nothing. A new plan by itself migrates no running request: it only decides where new
// ones go.
package fleet
