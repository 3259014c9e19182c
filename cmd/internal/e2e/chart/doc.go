// Package chart tests deploy/helm, deploy/kustomize and deploy/kubernetes: Helm accepts the chart and
// refuses wrong values, everything that it renders is what a real API server accepts, the fleet
// files in it are valid, and Pods that are deleted lose no stream.
//
// The tests run under CASCADE_TEST_ALL, with Helm ("make helm") and kubectl; the API server is that
// of package kubetest. What needs neither is tested in cmd/cascade.
package chart
