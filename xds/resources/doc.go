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
// One plan is rendered for three kinds of client, which differ in the names of
// resources and in where they look for the next one: those that take everything
// over one ADS stream; Envoys whose listeners and clusters belong to somebody
// else, who ask for each type on a stream of its own; and gRPC clients that know
// Cascade as one authority of several. All are in one set, so that there is one
// proof and one rollout, and only the first are sent what they did not name.
//
// Invariants:
//   - nothing that Build returns breaks Prove, which reads only the encoded
//     resources and checks every rule that a served table has to keep;
//   - the listener and the clusters of a model do not depend on its plan: a
//     new boundary is one RouteConfiguration, a replica's move is
//     ClusterLoadAssignments, and nothing else changes.
package resources
