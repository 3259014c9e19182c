// Package cluster tests Cascade in a Kubernetes cluster: a real API server with etcd, Helm, the chart and the manifests
// of deploy, and Cascade's programs in Pods that packages clustertest and podprocess run as processes. Its engines are emulated.
//
// Its tests run with CASCADE_TEST_ALL=1, where the programs of "make kube-apiserver", "make helm" and, for TestLife, of "make
// envoy" and "make envoy-gateway" are.
package cluster
