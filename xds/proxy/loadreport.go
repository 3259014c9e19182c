package proxy

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/xds/loadreport"
)

const (
	// loadReportRetry is the pause before another load report stream on the same connection. It
	// doubles while streams end early, up to maxLoadReportRetry.
	loadReportRetry    = time.Second
	maxLoadReportRetry = 30 * time.Second
	// minLoadReportInterval bounds how often a control plane may ask for reports.
	minLoadReportInterval = 100 * time.Millisecond
)

// reportLoads reports the load of the endpoints and the proxy's own problems to a control plane, as
// Envoy does by LRS, until ctx ends. A control plane may refuse that; the proxy serves without it.
func (p *Proxy) reportLoads(ctx context.Context, conn grpc.ClientConnInterface) {
	pause := loadReportRetry
	for {
		begun := time.Now()
		err := p.reportLoadsOnce(ctx, conn)
		if time.Since(begun) >= maxLoadReportRetry {
			pause = loadReportRetry
		}
		if ctx.Err() == nil {
			p.cfg.Logger.Debug("load report stream ended", "error", err)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxLoadReportRetry)
		case <-ctx.Done():
			return
		}
	}
}

// reportLoadsOnce runs one report stream until it fails.
func (p *Proxy) reportLoadsOnce(ctx context.Context, conn grpc.ClientConnInterface) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := loadstatsv3.NewLoadReportingServiceClient(conn).StreamLoadStats(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&loadstatsv3.LoadStatsRequest{Node: p.reportingNode()}); err != nil {
		return err
	}
	asked, err := stream.Recv()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil { // the server only repeats what it asked for
				ended <- err
				return
			}
		}
	}()
	interval := max(asked.GetLoadReportingInterval().AsDuration(), minLoadReportInterval)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := stream.Send(&loadstatsv3.LoadStatsRequest{Node: p.reportingNode(),
				ClusterStats: p.clusterStats(interval)}); err != nil {
				cancel()
				return <-ended
			}
		case err := <-ended:
			return err
		}
	}
}

// reportingNode returns the node of a report, with the problems in its metadata.
func (p *Proxy) reportingNode() *corev3.Node {
	n := &corev3.Node{Id: p.cfg.Client.NodeID, Cluster: p.cfg.Client.Cluster}
	if p.cfg.Problems == nil {
		return n
	}
	fields := make(map[string]*structpb.Value)
	for _, problem := range p.cfg.Problems() {
		fields[problem.Kind] = structpb.NewStringValue(problem.Text)
	}
	if len(fields) > 0 {
		n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{loadreport.ProblemsField: structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
	}
	return n
}

// clusterStats returns the loads of the replicas since the last call. Those that have had no request
// are left out.
func (p *Proxy) clusterStats(interval time.Duration) (out []*endpointv3.ClusterStats) {
	for _, s := range p.state.Load().stages {
		l := &endpointv3.UpstreamLocalityStats{Locality: &corev3.Locality{}}
		for address, n := range s.samples() {
			a, err := netip.ParseAddrPort(address)
			if err != nil {
				continue
			}
			l.TotalRequestsInProgress += n.active
			l.TotalIssuedRequests += n.issued
			l.TotalSuccessfulRequests += n.succeeded
			l.TotalErrorRequests += n.failed
			l.UpstreamEndpointStats = append(l.UpstreamEndpointStats, &endpointv3.UpstreamEndpointStats{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: a.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
				}}},
				TotalRequestsInProgress: n.active, TotalIssuedRequests: n.issued,
				TotalSuccessfulRequests: n.succeeded, TotalErrorRequests: n.failed,
			})
		}
		if len(l.UpstreamEndpointStats) > 0 {
			out = append(out, &endpointv3.ClusterStats{
				ClusterName: s.name, ClusterServiceName: s.endpoints, LoadReportInterval: durationpb.New(interval),
				UpstreamLocalityStats: []*endpointv3.UpstreamLocalityStats{l},
			})
		}
	}
	return out
}

// load counts the requests of a replica, for load reports.
type load struct {
	active                    atomic.Int64
	issued, succeeded, failed atomic.Uint64
}

// sample is what a load has counted: the requests in progress, and the others since the last
// sample.
type sample struct{ active, issued, succeeded, failed uint64 }

// begin counts a request that is sent to the replica.
func (l *load) begin() {
	l.active.Add(1)
	l.issued.Add(1)
}

// end counts the end of a request: whether the replica answered it, other than with a server error.
func (l *load) end(succeeded bool) {
	l.active.Add(-1)
	if succeeded {
		l.succeeded.Add(1)
	} else {
		l.failed.Add(1)
	}
}

// abandon ends a request that says nothing about the replica: its client has left, or this process
// could not send it.
func (l *load) abandon() { l.active.Add(-1) }
