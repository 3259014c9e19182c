// Package shares compares what replicas of a stage get from a real Envoy with what the simulator's proxy
// (package proxypick) gives them: by weights, by prefix keys, and while one of them drains.
//
// Envoy has the production resources of package resources, from the production xDS server; the test's own
// listener names the cluster of each request, so that nothing but the balancing is compared.
package shares
