// Package attach renders the configuration that the owner of another Envoy or
// gRPC client adds once so that Cascade routes part of their traffic: a cluster
// for the control plane, an RDS subscription to its route table, and an
// on-demand CDS filter, which fetches a cluster when the first request needs it.
// Everything after that comes from Cascade over xDS.
//
// An Envoy can be attached in two ways. WholeListener hands over the route table
// of a listener. InternalListener hands over what the owner's routes send to one
// cluster and leaves their listeners, route tables and filters unchanged; it can
// name a fallback cluster that serves while Cascade has no route.
//
// The public API holds in both ways: Cascade's route table begins with routes that refuse
// other methods and paths (package internal/publicapi), and the configuration rendered here
// normalises paths before they are looked up. The bounds of what the owner's listener takes
// before that (connections, headers, bodies, upgrades) stay the owner's, and so do routes that
// do not lead to Cascade. A refusal is an answer: no fallback cluster serves the request. An
// owner who rewrites paths must do so before Cascade's table sees them, in the route that
// leads to the internal listener.
//
// The package is pure: it reads no file and opens no connection. It renders no
// plan; package resources does that, under the names for these clients.
//
// EnvoyPatchPolicy and EnvoyFilter render WholeListener as the Kubernetes objects of Envoy
// Gateway and Istio. HTTPRoute is for gateways that accept neither: it renders boundaries as
// regular expressions.
//
// Invariant: the output depends on no plan, so the owner adds it once. The exception is
// HTTPRoute, whose boundaries are those that the owner states.
package attach
