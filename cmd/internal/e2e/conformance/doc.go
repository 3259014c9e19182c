// Package conformance has a test that runs the conformance suite of the Gateway API Inference
// Extension, unchanged, against "cascade-kube epp" (make conformance).
//
// The suite tests a gateway together with the endpoint pickers of its InferencePools. Here the
// gateway is Istio's control plane with stock Envoy, the API server is the real one, and package
// clustertest does what controllers and kubelets do: the test runs a picker of this repository
// wherever the suite deploys the reference picker. Each Pod is a network namespace.
//
// What the suite, Istio and the API server are built from is in modules of their own; the result
// is docs/conformance.md.
package conformance
