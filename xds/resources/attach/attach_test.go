package attach_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

var here = []string{"127.0.0.1:18000"}

func TestRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		config attach.Config
		want   string
	}{
		"no control plane":             {attach.Config{}, "host:port"},
		"no port":                      {attach.Config{Control: []string{"10.0.0.1"}}, "10.0.0.1"},
		"port 0":                       {attach.Config{Control: []string{"10.0.0.1:0"}}, "10.0.0.1:0"},
		"no host":                      {attach.Config{Control: []string{":18000"}}, ":18000"},
		"second bad":                   {attach.Config{Control: []string{here[0], "x:y"}}, "x:y"},
		"short fetch":                  {attach.Config{Control: here, FetchTimeout: time.Millisecond}, "1ms"},
		"fallback to internal cluster": {attach.Config{Control: here, Fallback: attach.InternalCluster}, "fallback"},
		"fallback to xDS":              {attach.Config{Control: here, Fallback: resources.XDSCluster}, "fallback"},
		"cluster is the internal one":  {attach.Config{Control: here, Cluster: attach.InternalCluster}, attach.InternalCluster},
		"two lines":                    {attach.Config{Control: here, Model: "a\nb"}, "one line"},
	} {
		if _, err := attach.InternalListener(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := attach.WholeListener(attach.Config{Control: here, Fallback: "x"}); err == nil || !strings.Contains(err.Error(), "internal listener") {
		t.Errorf("a whole listener with a fallback: %v", err)
	}
}

// TestObjectsRefuse checks that an object for Kubernetes without any one of its names is refused, and one with
// load reports, which it cannot have.
func TestObjectsRefuse(t *testing.T) {
	patch := attach.PatchConfig{Config: attach.Config{Control: here}, Name: "a", Namespace: "b", Gateway: "c", Section: "d"}
	filter := attach.FilterConfig{Config: attach.Config{Control: here}, Name: "a", Namespace: "b", Labels: map[string]string{"c": "d"}, Port: 1}
	for name, c := range map[string]struct {
		edit func(p *attach.PatchConfig, f *attach.FilterConfig)
		want [2]string // of the policy and of the filter
	}{
		"complete":     {func(*attach.PatchConfig, *attach.FilterConfig) {}, [2]string{"", ""}},
		"no name":      {func(p *attach.PatchConfig, f *attach.FilterConfig) { p.Name, f.Name = "", "" }, [2]string{"the name", "the name"}},
		"no namespace": {func(p *attach.PatchConfig, f *attach.FilterConfig) { p.Namespace, f.Namespace = "", "" }, [2]string{"the namespace", "the namespace"}},
		"no gateway":   {func(p *attach.PatchConfig, f *attach.FilterConfig) { p.Gateway, f.Labels = "", nil }, [2]string{"the Gateway", "the labels"}},
		"no listener":  {func(p *attach.PatchConfig, f *attach.FilterConfig) { p.Section, f.Port = "", 0 }, [2]string{"its listener", "the listener's port"}},
		"load reports": {func(p *attach.PatchConfig, f *attach.FilterConfig) { p.LoadReports, f.LoadReports = true, true }, [2]string{"bootstrap", "bootstrap"}},
	} {
		p, f := patch, filter
		c.edit(&p, &f)
		_, err := attach.EnvoyPatchPolicy(p)
		testkit.WantError(t, err, c.want[0])
		_, other := attach.EnvoyFilter(f)
		testkit.WantError(t, other, c.want[1])
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

// TestEnvoyAccepts has a real Envoy check the rendered resources within an owner's
// configuration.
func TestEnvoyAccepts(t *testing.T) {
	plain := attach.Config{Control: here}
	rich := attach.Config{
		Control: []string{"cascade.internal:18000", "[::1]:18001"}, Cluster: "their/xds", Model: "org/m",
		EstimatorFilter: true, LoadReports: true, Listener: "llm", Fallback: "theirs",
	}
	for name, render := range map[string]func() (*attach.EnvoyConfig, error){
		"whole":             func() (*attach.EnvoyConfig, error) { return attach.WholeListener(plain) },
		"internal listener": func() (*attach.EnvoyConfig, error) { return attach.InternalListener(plain) },
		"rich whole": func() (*attach.EnvoyConfig, error) {
			c := rich
			c.Fallback = ""
			return attach.WholeListener(c)
		},
		"rich internal listener": func() (*attach.EnvoyConfig, error) { return attach.InternalListener(rich) },
	} {
		t.Run(name, func(t *testing.T) {
			h, err := render()
			testkit.NoError(t, err)
			text := testkit.Must(resources.FormatJSON(owned(t, h)))
			envoytest.Validate(t, string(text))
		})
	}
}

// owned returns an owner's bootstrap with everything added.
func owned(t *testing.T, h *attach.EnvoyConfig) *bootstrapv3.Bootstrap {
	t.Helper()
	b := &bootstrapv3.Bootstrap{Node: &corev3.Node{Id: "n", Cluster: "c"}, StaticResources: &bootstrapv3.Bootstrap_StaticResources{
		Clusters: append(slices.Clone(h.Clusters), &clusterv3.Cluster{Name: "theirs", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}}),
	}}
	if h.Bootstrap != nil {
		proto.Merge(b, h.Bootstrap)
	}
	m := &hcmv3.HttpConnectionManager{StatPrefix: "theirs"}
	if h.Manager != nil {
		proto.Merge(m, h.Manager)
	} else {
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, h.Listener)
		m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "theirs", VirtualHosts: []*routev3.VirtualHost{{Name: "llm", Domains: []string{"llm.example"}, Routes: []*routev3.Route{h.Route}}},
		}}
	}
	m.HttpFilters = append(m.HttpFilters, resources.RouterFilter())
	packed := testkit.Must(anypb.New(m))
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, &listenerv3.Listener{
		Name:    "theirs",
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{}}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed},
		}}}},
	})
	return b
}

// TestTables checks that the requested names are those that Cascade renders for such
// clients.
func TestTables(t *testing.T) {
	for model, want := range map[string]string{"": resources.SplitRouteName, "org/m": resources.SplitModelRouteName("org/m")} {
		h, err := attach.WholeListener(attach.Config{Control: here, Model: model})
		testkit.NoError(t, err)
		if got := h.Manager.GetRds().RouteConfigName; got != want {
			t.Errorf("model %q: table %q, want %q", model, got, want)
		}
		if source := h.Manager.GetRds().ConfigSource; !proto.Equal(source, resources.SplitConfigSource(resources.XDSCluster, 2*time.Second)) {
			t.Errorf("model %q: source %v", model, source)
		}
	}
	named, err := attach.WholeListener(attach.Config{Control: []string{"cascade.internal:18000"}})
	testkit.NoError(t, err)
	if got := named.Clusters[0].GetType(); got != clusterv3.Cluster_STRICT_DNS {
		t.Errorf("a host name in a cluster of type %v", got)
	}
}

// TestGRPC checks that the client's own bootstrap keeps all its fields.
func TestGRPC(t *testing.T) {
	const theirs = `{"xds_servers": [{"server_uri": "td:443", "channel_creds": [{"type": "google_default"}], "odd": 1}],
		"node": {"id": "x", "metadata": {"k": [1, 2]}}, "certificate_providers": {"p": {}},
		"authorities": {"td": {"xds_servers": []}, "cascade": {"old": true}}}`
	out, err := attach.GRPCBootstrap(attach.GRPCConfig{
		Control: []string{"a:1", "b:2"}, Bootstrap: []byte(theirs), TLS: attach.TLSFiles{Cert: "c", Key: "k", CA: "r"},
	})
	testkit.NoError(t, err)
	var got, want map[string]any
	testkit.NoError(t, json.Unmarshal(out, &got))
	if err := json.Unmarshal([]byte(theirs), &want); err != nil {
		t.Fatal(err)
	}
	cascade := got["authorities"].(map[string]any)["cascade"].(map[string]any)
	delete(got["authorities"].(map[string]any), "cascade")
	delete(want["authorities"].(map[string]any), "cascade")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
	creds := map[string]any{"type": "tls", "config": map[string]any{"certificate_file": "c", "private_key_file": "k", "ca_certificate_file": "r"}}
	server := func(uri string) any {
		return map[string]any{"server_uri": uri, "channel_creds": []any{creds}, "server_features": []any{"xds_v3"}}
	}
	if want := map[string]any{
		"client_listener_resource_name_template": "xdstp://cascade/envoy.config.listener.v3.Listener/%s",
		"xds_servers":                            []any{server("a:1"), server("b:2")},
	}; !reflect.DeepEqual(cascade, want) {
		t.Errorf("authority %v\nwant %v", cascade, want)
	}
	for name, c := range map[string]attach.GRPCConfig{
		"no control plane": {NodeID: "n"},
		"no node":          {Control: here},
		"bad address":      {Control: []string{"x"}, NodeID: "n"},
		"half of TLS":      {Control: here, NodeID: "n", TLS: attach.TLSFiles{Cert: "c"}},
		"not JSON":         {Control: here, Bootstrap: []byte("x")},
		"null":             {Control: here, Bootstrap: []byte("null")},
		"bad authorities":  {Control: here, Bootstrap: []byte(`{"authorities": 1}`)},
	} {
		if _, err := attach.GRPCBootstrap(c); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	out, err = attach.GRPCBootstrap(attach.GRPCConfig{Control: here, Bootstrap: []byte(`{"authorities": null}`)})
	if err != nil || !strings.Contains(string(out), `"cascade": {`) {
		t.Errorf("without authorities: %s, %v", out, err)
	}
}

// TestConnectionBuffer: a listener holds what an estimator inside the proxy has to read, and little without one.
func TestConnectionBuffer(t *testing.T) {
	for want, c := range map[uint32]attach.Config{
		resources.ClientBuffer: {BodyLimit: 1 << 20, EstimatorFilter: true},
		1 << 20:                {BodyLimit: 1 << 20, EstimatorFilter: true, SeveralModels: true},
		length.BodyLimit:       {EstimatorFilter: true, SeveralModels: true},
	} {
		if got := c.ConnectionBuffer(); got != want {
			t.Errorf("%+v: %d bytes, want %d", c, got, want)
		}
	}
}
