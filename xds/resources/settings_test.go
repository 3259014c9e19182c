package resources

import (
	"strconv"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestPingTimeout checks that replicas and the length service get the setting's time to answer a
// ping, 5 s by default.
func TestPingTimeout(t *testing.T) {
	for _, s := range []Settings{{}, {PingTimeout: time.Minute}} {
		want := s.PingTimeout
		if want == 0 {
			want = 5 * time.Second
		}
		c := serviceCluster("lengths", "127.0.0.1:1", s.complete())
		options := HTTP2Options(1)
		testkit.NoError(t, c.TypedExtensionProtocolOptions[protocolOptionsKey].UnmarshalTo(options))
		if got := options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive().GetTimeout().AsDuration(); got != want {
			t.Errorf("setting %v: the ping timeout is %v, want %v", s.PingTimeout, got, want)
		}
	}
	if err := (Settings{PingTimeout: time.Microsecond}).complete().validate(); err == nil {
		t.Error("a ping timeout of 1µs is accepted")
	}
}

// TestBodyLimit checks that every route that keeps bodies, and the module, have the limit of the settings.
func TestBodyLimit(t *testing.T) {
	const limit = 3 << 20
	v := View{
		Models:    []Model{{Name: "m", Context: 1000, Hosts: []string{"m.test"}}, {Name: "n", Context: 1000}},
		Plans:     []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"a"}), policies.OneStagePlan("n", []policies.ReplicaID{"b"})},
		Endpoints: []Endpoint{{Replica: policies.Replica{ID: "a", Model: "m", Address: "127.0.0.1:1"}}, {Replica: policies.Replica{ID: "b", Model: "n", Address: "127.0.0.1:2"}}},
		Settings:  Settings{Estimator: Wasm, BodyLimit: limit},
	}
	var err error
	if v.Settings.Module, err = NewModule(wasmMagic, limit); err != nil {
		t.Fatal(err)
	}
	set, err := Build(v)
	testkit.NoError(t, err)
	table := new(routev3.RouteConfiguration)
	testkit.NoError(t, proto.Unmarshal(set.Get(RouteType, RouteName).Body, table))
	kept := 0
	for _, h := range table.VirtualHosts {
		for _, r := range h.Routes {
			if strings.HasPrefix(r.Name, "refused/") {
				continue
			}
			kept++
			if got := r.GetRequestBodyBufferLimit().GetValue(); got != limit {
				t.Errorf("route %q of %q keeps bodies of %d bytes, want %d", r.Name, h.Name, got, limit)
			}
		}
	}
	if kept < 6 {
		t.Errorf("%d routes keep bodies", kept)
	}
	if config := string(set.Get(ExtensionType, LengthFilter).Body); !strings.Contains(config, `"max_body":`+strconv.Itoa(limit)+`}`) {
		t.Errorf("the module has another limit: %q", config)
	}
	for _, wrong := range []int64{-1, limit + 1} {
		v.Settings.BodyLimit = wrong
		if _, err := Build(v); err == nil {
			t.Errorf("body limit %d is accepted with a module for %d", wrong, limit)
		}
	}
}
