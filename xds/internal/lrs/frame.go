package lrs

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Bounds of one message. A proxy names an endpoint only while it has requests
// for it.
const (
	maxClusters  = 4096 // of Cascade's
	maxEndpoints = 1 << 16
	maxCount     = 1 << 24 // requests of one endpoint
	maxName      = 256     // bytes of a node's id or cluster
)

// prefixes begin the names of the clusters that Cascade makes, in all spellings.
var prefixes = [...]string{"cascade/", "xdstp://cascade/"}

// Fields of the messages that are read here, by their numbers.
const (
	requestNode         = 1 // LoadStatsRequest.node
	requestClusterStats = 2 // LoadStatsRequest.cluster_stats
	nodeID              = 1 // Node.id
	nodeCluster         = 2 // Node.cluster
	clusterStatsName    = 1 // ClusterStats.cluster_name
)

// frame is a LoadStatsRequest, read by hand: an Envoy repeats the 80 KB that
// describe it in every message, of which two names are wanted, once. It decodes
// itself into what is kept. It is a message to gRPC by its methods alone.
type frame struct {
	node     *corev3.Node // id and cluster alone; nil when the message has none
	clusters []cluster
}

// cluster is what a node tells of one of Cascade's clusters.
type cluster struct {
	name, service           string // of the cluster and of its endpoints
	success, errors, issued uint64 // since the message before
	// unplaced are requests in progress that no endpoint was named for: gRPC
	// clients report by locality.
	unplaced  int
	endpoints []endpoint
}

// endpoint is what a node tells of one address of a cluster.
type endpoint struct {
	address netip.AddrPort
	active  int // requests in progress
	// told is how many answers told how much of the KV cache is in use, share
	// the sum of what they told.
	told  uint64
	share float64
}

// The methods that make it a message to gRPC, which only receives it.

func (*frame) ProtoMessage()              {}
func (f *frame) Reset()                   { *f = frame{} }
func (f *frame) String() string           { return fmt.Sprintf("%d clusters of %v", len(f.clusters), f.node) }
func (f *frame) Unmarshal(b []byte) error { return f.decode(b) }
func (*frame) Marshal() ([]byte, error)   { return nil, errors.New("lrs: frames are only received") }

// GetNode is the name that interceptors bind to a certificate.
func (f *frame) GetNode() *corev3.Node { return f.node }

// decode reads a message. Nothing of b is kept. Fields that are not known are
// skipped; what is out of bounds is refused.
func (f *frame) decode(b []byte) error {
	*f = frame{}
	endpoints := 0
	return fields(b, func(n protowire.Number, v []byte) error {
		switch n {
		case requestNode:
			return f.decodeNode(v)
		case requestClusterStats:
			if ours, err := isCascades(v); err != nil || !ours {
				return err
			}
			if len(f.clusters) == maxClusters {
				return fmt.Errorf("more than %d clusters", maxClusters)
			}
			var m endpointv3.ClusterStats
			if err := proto.Unmarshal(v, &m); err != nil {
				return errors.New("cluster_stats: the bytes are no ClusterStats")
			}
			c := clusterOf(&m)
			if endpoints += len(c.endpoints); endpoints > maxEndpoints {
				return fmt.Errorf("more than %d endpoints", maxEndpoints)
			}
			f.clusters = append(f.clusters, c)
		}
		return nil
	})
}

func (f *frame) decodeNode(b []byte) error {
	if f.node == nil {
		f.node = new(corev3.Node)
	}
	return fields(b, func(n protowire.Number, v []byte) error {
		to := &f.node.Id
		switch n {
		case nodeID:
		case nodeCluster:
			to = &f.node.Cluster
		default:
			return nil
		}
		if len(v) > maxName {
			return fmt.Errorf("node: a name of more than %d bytes", maxName)
		}
		*to = strings.ToValidUTF8(string(v), "?")
		return nil
	})
}

func isOurs(name string) bool {
	return slices.ContainsFunc(prefixes[:], func(p string) bool { return strings.HasPrefix(name, p) })
}

// isCascades reads the name of a ClusterStats, and no more.
func isCascades(b []byte) (ours bool, err error) {
	err = fields(b, func(n protowire.Number, v []byte) error {
		if n == clusterStatsName {
			ours = isOurs(string(v))
		}
		return nil
	})
	return ours, err
}

// fields calls do for the fields of a message that have a length, and skips the
// others.
func fields(b []byte, do func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errors.New("the bytes are no message")
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return errors.New("the bytes are no message")
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return errors.New("the bytes are no message")
		}
		if err := do(number, v); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

func clusterOf(m *endpointv3.ClusterStats) cluster {
	c := cluster{name: m.GetClusterName(), service: m.GetClusterServiceName()}
	for _, l := range m.GetUpstreamLocalityStats() {
		c.success = plus(c.success, l.GetTotalSuccessfulRequests())
		c.errors = plus(c.errors, l.GetTotalErrorRequests())
		c.issued = plus(c.issued, l.GetTotalIssuedRequests())
		left := count(l.GetTotalRequestsInProgress())
		for _, e := range l.GetUpstreamEndpointStats() {
			a, ok := addressOf(e.GetAddress())
			if !ok {
				continue
			}
			out := endpoint{address: a, active: count(e.GetTotalRequestsInProgress())}
			left -= out.active
			for _, metric := range e.GetLoadMetricStats() {
				if metric.GetMetricName() == ShareMetric {
					out.told, out.share = share(metric)
				}
			}
			c.endpoints = append(c.endpoints, out)
		}
		c.unplaced = min(c.unplaced+max(left, 0), maxCount)
	}
	return c
}

// ShareMetric is the name under which proxies report the share of its KV cache
// that an endpoint's answers tell of, as vLLM spells it.
const ShareMetric = "named_metrics.kv_cache_usage_perc"

// share bounds what answers tell of a share: each from 0 to 1.
func share(m *endpointv3.EndpointLoadMetricStats) (told uint64, sum float64) {
	told = min(m.GetNumRequestsFinishedWithMetric(), maxCount)
	sum = m.GetTotalMetricValue()
	if told == 0 || math.IsNaN(sum) {
		return 0, 0
	}
	return told, min(max(sum, 0), float64(told))
}

func addressOf(a *corev3.Address) (netip.AddrPort, bool) {
	s := a.GetSocketAddress()
	ip, err := netip.ParseAddr(s.GetAddress())
	if err != nil || s.GetPortValue() == 0 || s.GetPortValue() > math.MaxUint16 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(s.GetPortValue())), true
}

func count(n uint64) int { return int(min(n, maxCount)) }

// plus adds counts that a proxy may have made up.
func plus(a, b uint64) uint64 { return min(a, maxCount) + min(b, maxCount) }
