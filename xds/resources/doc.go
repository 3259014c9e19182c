// Package resources renders plans into xDS: from a View (models, plans, replicas,
// settings) it builds the listeners, routes, clusters and endpoints by which any Envoy
// or gRPC client routes by length.
//
// It is pure. Build reads no clock, no file and no map order, and marshals
// deterministically, so every server that renders the same view produces the same
// bytes and versions: a client that reconnects to another or a restarted server is
// sent nothing again. Package publish decides when a set is served to which client.
//
// One plan is rendered for three kinds of client. They differ in the names of
// resources and in the config source of the next one: clients that get everything over
// one ADS stream; Envoys of another owner ("split"), which open one stream per type;
// and gRPC clients that know Cascade as one of several authorities ("federated"). All
// are in one set, so there is one proof and one rollout; only the first kind is sent
// resources that it did not request by name.
//
// What is not in the public API (package internal/publicapi) is refused by the first routes of
// every virtual host of a proxy's table, so that no replica sees it.
//
// Invariants:
//   - Prove accepts every result of Build; it reads only the encoded resources and
//     checks every rule that a served table must keep;
//   - the listener and the clusters of a model do not depend on its plan: a new
//     boundary changes one RouteConfiguration, a replica's move changes
//     ClusterLoadAssignments, and nothing else changes.
package resources
