package proxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/policies/httpserver/servertest"
	"github.com/cascadeinfer/cascade/xds/client"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestAttackEarlyAnswers checks every answer that the proxy gives, or passes on, before
// a request's body has arrived.
func TestAttackEarlyAnswers(t *testing.T) {
	f := newFleet(t, 4, nil)
	f.publish(manyModels(f.view), func(all map[string][]types.Resource) {
		rc := all[resources.RouteType][0].(*routev3.RouteConfiguration)
		for _, h := range rc.VirtualHosts {
			if h.Domains[0] == "*" {
				h.Domains = []string{"shared"}
			}
		}
		host := func(name, prefix, cluster string) {
			rc.VirtualHosts = append(rc.VirtualHosts, &routev3.VirtualHost{Name: name, Domains: []string{name}, Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: prefix}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
					IdleTimeout:      durationpb.New(200 * time.Millisecond),
				}}}}})
		}
		cluster := func(name string, requests uint32, endpoints ...*endpointv3.LbEndpoint) {
			all[resources.ClusterType] = append(all[resources.ClusterType], &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
				CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{MaxRequests: wrapperspb.UInt32(requests)}}},
				LoadAssignment:  &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: endpoints}}}})
		}
		host("no-route", "/elsewhere", "empty")
		host("no-cluster", "/", "nope")
		host("empty", "/", "empty")
		host("full", "/", "full")
		host("slow", "/", "slow")
		cluster("empty", 100)
		cluster("full", 0)
		front := netip.MustParseAddrPort(f.fronts[0].address)
		cluster("slow", 100, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: front.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(front.Port())}}}}}}})
	}, func(s *client.Snapshot) bool {
		n := s.Clusters["cascade/n%2F2/s0/rr"]
		return s.Routes["cascade"] != nil && len(s.Routes["cascade"].Hosts) == 7 && n != nil && s.Assignment(n) != nil && s.Clusters["slow"] != nil
	})
	// The estimator reads all of a body whose size it is not given before a host is chosen.
	servertest.TestEarlyAnswers(t, strings.TrimPrefix(f.url, "http://"),
		servertest.EarlyAnswer{Name: "no virtual host", Host: "other", Path: "/v1/completions", Status: 404},
		servertest.EarlyAnswer{Name: "no route", Host: "no-route", Path: "/v1/completions", Status: 404},
		servertest.EarlyAnswer{Name: "no cluster", Host: "no-cluster", Path: "/v1/completions", Status: 503},
		servertest.EarlyAnswer{Name: "no endpoint", Host: "empty", Path: "/v1/completions", Status: 503},
		servertest.EarlyAnswer{Name: "overloaded", Host: "full", Path: "/v1/completions", Status: 503},
		servertest.EarlyAnswer{Name: "too large", Host: "shared", Path: "/v1/completions", Status: 413, Size: 16<<20 + 1, KnownSize: true},
		servertest.EarlyAnswer{Name: "too large", Host: "shared", Path: "/v1/completions", Status: 413, Send: 16<<20 + 1, UnknownSize: true},
		servertest.EarlyAnswer{Name: "body too slow", Host: "slow", Path: "/v1/completions", Status: 408, Send: 100},
		servertest.EarlyAnswer{Name: "upstream's 404", Host: "n.example", Path: "/status/404", Status: 404, Send: 100, KnownSize: true},
		servertest.EarlyAnswer{Name: "upstream's 503", Host: "n.example", Path: "/status/503", Status: 503, Send: 100, KnownSize: true},
		servertest.EarlyAnswer{Name: "upstream's 200", Host: "n.example", Path: "/status/200", Status: 200, Send: 100, KnownSize: true},
		servertest.EarlyAnswer{Name: "refused by every upstream", Host: "n.example", Path: "/refused-at-once", Status: 503, Send: 100, KnownSize: true},
	)
}
