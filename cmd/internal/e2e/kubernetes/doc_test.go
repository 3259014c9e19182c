// Package kubernetes tests Cascade in Kubernetes and in the gateways that live there. A real API server with etcd has
// the objects; package clustertest runs the Pods as processes; the engines are emulated. The tests are slow ones, and
// need the programs that make builds:
//
//   - Files of deploy (make helm): Helm accepts the chart and refuses wrong values, the API server accepts everything
//     that it renders, and Pods that are deleted lose no stream.
//   - A whole life (make kube-apiserver helm envoy envoy-gateway): TestLife installs, scales, upgrades and uninstalls a fleet.
//   - Envoy Gateway (make envoy-gateway) and Istio (make istio): the object that "cascade attach" prints hands a
//     gateway's routes over to Cascade under load, and gives them back.
//   - The conformance suite of the Gateway API Inference Extension, unchanged, against "cascade-kube epp" (make
//     conformance). Wherever the suite deploys the reference picker, the test runs the one of this repository. The
//     result is docs/conformance.md.
//
// Istio, Envoy Gateway and the suite are built from modules of their own, in the folders of this one.
package kubernetes
