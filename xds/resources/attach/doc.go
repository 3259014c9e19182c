// Package attach renders what the owner of an Envoy, or of a gRPC client, has
// to add once so that Cascade routes a part of their traffic: a cluster for the
// control plane, a pointer to its route table, and a filter that fetches the
// clusters which that table names when the first request needs them. Everything
// after that comes from Cascade alone.
//
// There are two ways into an Envoy. Whole hands a listener's route table over.
// Door hands over what the owner's routes send to a cluster, and leaves their
// listeners, route tables and filters as they are; it can name a cluster that
// serves while Cascade has no route.
//
// It is pure, reads no file and does not talk to anybody. It renders no plan:
// package resources does, in the spelling for such clients.
//
// Invariant: what is rendered depends on no plan, so it is written once.
package attach
