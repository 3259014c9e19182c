// Package istio has a test that attaches Cascade to a gateway of Istio's under load, and detaches it again (make istio).
//
// Istio's control plane runs on a real API server, and the gateway is stock Envoy (package istiotest). A fleet of two
// stages is a process of "cascade up". The object that hands the gateway's routes over is what "cascade attach --to istio"
// prints.
package istio
