package publish_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// TestFederation has grpc-go's own xDS client, whose default control plane is
// down, reach a model through the authority that attach adds to its bootstrap.
func TestFederation(t *testing.T) {
	for _, model := range []string{"m", "org/m 7b"} {
		t.Run(model, func(t *testing.T) {
			backends := make(map[string]*backend)
			for _, id := range []string{"a", "b"} {
				backends[id] = startGRPC(t, id)
			}
			p, _ := startServices(t, "")
			of := func(epoch policies.Epoch, cut policies.Tokens) resources.View {
				v := backendView(backends, epoch, []policies.Tokens{cut}, "a", "b")
				v.Models[0].Name, v.Plans[0].Model = model, model
				for i := range v.Endpoints {
					v.Endpoints[i].Model = model
				}
				return v
			}
			p.publisher.Submit(of(1, 1000))
			theirs := fmt.Sprintf(`{"node": {"id": "grpc-1"}, "xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}]}`, freeAddress(t))
			boot, err := attach.GRPCBootstrap(attach.GRPCConfig{Control: []string{p.address}, Bootstrap: []byte(theirs)})
			if err != nil {
				t.Fatal(err)
			}
			call := dialXDS(t, boot, "xds://cascade/"+model)
			for _, x := range []struct{ tokens, want string }{
				{"5", "a"}, {"0", "a"}, {"999", "a"}, {"1000", "b"}, {"", "b"}, {"abc", "b"}, {fmt.Sprint(math.MaxInt64), "b"},
			} {
				if got, err := call(x.tokens); err != nil || got != x.want {
					t.Errorf("%q tokens: served by %q, %v; want %s", x.tokens, got, err, x.want)
				}
			}
			p.waitForCurrent(t, 1, 1)
			p.publisher.Submit(of(2, 2000))
			testkit.WaitFor(t, "the new boundary", func() bool {
				got, err := call("1999")
				if err != nil {
					t.Fatal(err)
				}
				return got == "a"
			})
			if got, err := call("2000"); err != nil || got != "b" {
				t.Errorf("at the new boundary: %q, %v", got, err)
			}
			nodes := p.publisher.Status().Nodes
			if i := slices.IndexFunc(nodes, func(n publish.Node) bool { return n.NACKs > 0 }); i >= 0 || len(nodes) != 1 {
				t.Errorf("nodes: %+v", nodes)
			}
		})
	}
}
