package clustertest

import (
	"k8s.io/client-go/rest"

	"github.com/cascadeinfer/cascade/xds/kubetest"
)

// ClientConfig returns how to reach an API server as the user who may do everything, as often as a test likes.
func ClientConfig(s *kubetest.Server) *rest.Config {
	return &rest.Config{Host: "https://" + s.Address, BearerToken: s.Token, TLSClientConfig: rest.TLSClientConfig{CAFile: s.CAFile}, QPS: -1}
}
