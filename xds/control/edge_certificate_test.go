package control

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestSetEdgeCertificate checks that a proxy which subscribes to the certificate of the
// edge is sent it, and each new one. What an Envoy does with it is tested in package
// publish.
func TestSetEdgeCertificate(t *testing.T) {
	certificate := func(key string) *resources.Certificate {
		return &resources.Certificate{Chain: []byte("chain"), Key: []byte(key)}
	}
	f := newFakeFleet(t, 1)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, EdgeCertificate: certificate("first")})
	d := openDelta(t, c)
	d.send(t, &discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "edge"}, TypeUrl: resources.SecretType, ResourceNamesSubscribe: []string{resources.EdgeSecret},
	})
	versions := make(map[string]bool)
	for range 2 {
		r, err := d.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(r.GetResources()) != 1 {
			t.Fatalf("sent %v", r)
		}
		versions[r.GetResources()[0].GetVersion()] = true
		d.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.SecretType, ResponseNonce: r.GetNonce()})
		if err := c.SetEdgeCertificate(certificate("second")); err != nil {
			t.Fatal(err)
		}
	}
	if len(versions) != 2 {
		t.Errorf("versions %v", versions)
	}
	if c.SetEdgeCertificate(nil) == nil {
		t.Error("SetEdgeCertificate accepted nil")
	}
	plain := startControl(t, Config{Rules: fastRules(), Replicas: f.list})
	if plain.SetEdgeCertificate(certificate("third")) == nil {
		t.Error("SetEdgeCertificate accepted a certificate for a plain-text listener")
	}
}
