package resources

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// BootstrapConfig is the part of an Envoy's configuration that it needs before it can
// connect to the control plane.
type BootstrapConfig struct {
	NodeID       string // unique per Envoy; required
	Zone         string // the host or zone of the Envoy, for its locality
	ControlPlane string // IP:port of the control plane, or unix:/PATH; "" means 127.0.0.1:18000
	// OtherControlPlanes are IP:port of further control planes of the same fleet. Envoy uses
	// them while those before them fail their health checks.
	OtherControlPlanes []string
	// Admin is IP:port of Envoy's admin page, or unix:/PATH, which only Envoy's own user can open; "" means
	// 127.0.0.1:0, a free port of loopback.
	Admin string
}

// Defaults of BootstrapConfig.
const (
	defaultXDS   = "127.0.0.1:18000"
	defaultAdmin = "127.0.0.1:0"
)

// nodeCluster is the cluster that all Envoys name as theirs.
const nodeCluster = "cascade"

// XDSCluster is the bootstrap's cluster of the control plane.
const XDSCluster = "cascade-xds"

// Bootstrap renders an Envoy bootstrap as JSON, which envoy -c reads from a file that
// ends in .json or .yaml. Envoy gets everything else over one delta ADS stream.
func Bootstrap(c BootstrapConfig) ([]byte, error) {
	b, err := bootstrap(c)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return FormatJSON(b)
}

func bootstrap(c BootstrapConfig) (*bootstrapv3.Bootstrap, error) {
	if c.NodeID == "" {
		return nil, fmt.Errorf("node id: give every Envoy a unique one")
	}
	admin, err := adminAddress(cmp.Or(c.Admin, defaultAdmin))
	if err != nil {
		return nil, err
	}
	planes, err := controlPlanes(append([]string{cmp.Or(c.ControlPlane, defaultXDS)}, c.OtherControlPlanes...))
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	plane := &corev3.GrpcService_EnvoyGrpc{ClusterName: XDSCluster}
	plane.RetryPolicy = &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
		BaseInterval: durationpb.New(planeRetry), MaxInterval: durationpb.New(planeRetryMax),
	}}
	service := []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: plane}}}
	fromADS := ads()
	// Wait for the control plane without a time limit: an Envoy that stops waiting reports
	// itself ready and then refuses every connection.
	fromADS.InitialFetchTimeout = durationpb.New(0)
	return &bootstrapv3.Bootstrap{
		Node: &corev3.Node{
			Id: c.NodeID, Cluster: nodeCluster,
			Locality: &corev3.Locality{Region: Region, Zone: c.Zone},
		},
		Admin: &bootstrapv3.Admin{Address: admin},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &corev3.ApiConfigSource{
				ApiType:                   corev3.ApiConfigSource_DELTA_GRPC,
				TransportApiVersion:       corev3.ApiVersion_V3,
				SetNodeOnFirstMessageOnly: true,
				GrpcServices:              service,
			},
			LdsConfig: fromADS,
			CdsConfig: fromADS,
		},
		ClusterManager:  LoadStatsConfig(service),
		OverloadManager: OverloadManager(),
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Clusters: []*clusterv3.Cluster{planes},
		},
	}, nil
}

// adminSocketMode lets only Envoy's own user connect, because the admin page can end Envoy.
const adminSocketMode = 0o600

// adminAddress returns the address of Envoy's admin page.
func adminAddress(text string) (*corev3.Address, error) {
	if at, ok := pipe(text, adminSocketMode); ok {
		return at, nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, fmt.Errorf("admin address %q: give an IP address and a port, or unix:/PATH", text)
	}
	return socketAddress(a), nil
}

// pipe parses the address of a Unix socket, unix:/PATH. It returns false for another text.
func pipe(text string, mode uint32) (*corev3.Address, bool) {
	path, ok := strings.CutPrefix(text, "unix:")
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path, Mode: mode}}}, ok && filepath.IsAbs(path)
}

// Health checks of the control planes, if there are several. Without them Envoy would
// retry the first one for ever.
const (
	planeCheck     = time.Second // interval and timeout of a check
	planeUnhealthy = 1           // failed checks
	// planeRetry and planeRetryMax bound the backoff between two streams. Envoy's default
	// goes up to 30 s, too long if another control plane is available or a certificate was repaired.
	planeRetry    = 200 * time.Millisecond
	planeRetryMax = 2 * time.Second
)

// controlPlanes returns the cluster of the control planes, in order of priority. An
// Envoy that has failed over stays with the other one while that is healthy, and is
// sent nothing again.
func controlPlanes(addresses []string) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:                          XDSCluster,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:                durationpb.New(time.Second),
		LoadAssignment:                &endpointv3.ClusterLoadAssignment{ClusterName: XDSCluster},
		TypedExtensionProtocolOptions: protocolOptions(minMaxRequests, defaultPingTimeout),
	}
	for i, address := range addresses {
		at, ok := pipe(address, 0)
		if !ok {
			a, err := hostPort(address)
			if err != nil {
				return nil, err
			}
			at = socketAddress(a)
		}
		c.LoadAssignment.Endpoints = append(c.LoadAssignment.Endpoints, &endpointv3.LocalityLbEndpoints{
			Priority: uint32(i), LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: at}}}},
		})
	}
	if len(addresses) > 1 {
		c.CloseConnectionsOnHostHealthFailure = true
		c.HealthChecks = []*corev3.HealthCheck{{
			Timeout: durationpb.New(planeCheck), Interval: durationpb.New(planeCheck), NoTrafficInterval: durationpb.New(planeCheck),
			UnhealthyThreshold: wrapperspb.UInt32(planeUnhealthy), HealthyThreshold: wrapperspb.UInt32(1),
			HealthChecker: &corev3.HealthCheck_GrpcHealthCheck_{GrpcHealthCheck: &corev3.HealthCheck_GrpcHealthCheck{}},
		}}
	}
	return c, nil
}

// FormatJSON renders a message as indented JSON, equal for equal messages: protojson
// alone varies its whitespace between builds.
func FormatJSON(m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("render %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
