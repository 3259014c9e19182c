package resources_test

import (
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestBootstrapOfSeveralPlanes checks that each control plane comes after the ones
// before it, and that Envoy checks their health, without which it would never leave the
// first one. With one control plane, it checks none.
func TestBootstrapOfSeveralPlanes(t *testing.T) {
	for _, others := range [][]string{nil, {"10.0.0.2:18000", "10.0.0.3:18000"}} {
		raw := testkit.Must(resources.Bootstrap(resources.BootstrapConfig{NodeID: "n", ControlPlane: "10.0.0.1:18000", OtherControlPlanes: others}))
		var b bootstrapv3.Bootstrap
		testkit.NoError(t, protojson.Unmarshal(raw, &b))
		if err := b.ValidateAll(); err != nil {
			t.Error(err)
		}
		c := b.StaticResources.Clusters[0]
		if len(c.LoadAssignment.Endpoints) != 1+len(others) || (len(c.HealthChecks) > 0) != (len(others) > 0) {
			t.Errorf("%d others: %d endpoints, %d health checks", len(others), len(c.LoadAssignment.Endpoints), len(c.HealthChecks))
		}
		for i, l := range c.LoadAssignment.Endpoints {
			if l.Priority != uint32(i) || len(l.LbEndpoints) != 1 {
				t.Errorf("endpoint %d: %v", i, l)
			}
		}
	}
}
