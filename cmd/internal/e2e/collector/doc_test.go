// Package collector tests the traces of a fleet with the receiver of the OpenTelemetry
// Collector, as it is built into every collector: one request is one trace, from the proxy
// through its front end to the engines' calls and the phases of its migrations
// ("make test-modules").
package collector
