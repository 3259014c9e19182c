// Package resources renders plans into xDS: a View (models, plans, replicas,
// settings) goes in, and the listeners, routes, clusters and endpoints that
// make any Envoy or gRPC client route by length come out.
//
// It is pure. Build reads no clock, no file and no map order, and marshals
// deterministically, so every server that renders the same view produces the
// same bytes and the same versions: a client that moves between servers, or
// meets one that was restarted, is sent nothing again. It does not publish;
// package publish decides when a set is shown to whom.
//
// Invariants:
//   - nothing that Build returns breaks Prove, which reads only the encoded
//     resources and checks every rule that a served table has to keep;
//   - the listener and the clusters of a model do not depend on its plan: a
//     new boundary is one RouteConfiguration, a replica's move is
//     ClusterLoadAssignments, and nothing else changes.
package resources
