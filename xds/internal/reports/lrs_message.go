package reports

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Bounds of one message. A proxy reports an endpoint only while it has requests for
// it.
const (
	maxClusters  = 4096 // of Cascade's
	maxEndpoints = 1 << 16
	maxCount     = 1 << 24 // requests of one endpoint
	maxName      = 256     // bytes of a node's id or cluster
)

// prefixes begin the names of Cascade's clusters, for all kinds of clients.
var prefixes = [...]string{"cascade/", "xdstp://cascade/"}

// Numbers of the fields that are decoded here.
const (
	requestNode         = 1 // LoadStatsRequest.node
	requestClusterStats = 2 // LoadStatsRequest.cluster_stats
	nodeID              = 1 // Node.id
	nodeCluster         = 2 // Node.cluster
	nodeMetadata        = 3 // Node.metadata
	structFields        = 1 // Struct.fields
	entryKey            = 1 // of a map
	entryValue          = 2
	clusterStatsName    = 1 // ClusterStats.cluster_name
)

// message is a LoadStatsRequest with its own decoder: an Envoy repeats its node
// description of 80 KB in every message, but only two names of it are needed, and only
// once. Its methods make gRPC accept it as a message.
type message struct {
	node     *corev3.Node // id and cluster alone; nil when the message has none
	problems []loadreport.Problem
	clusters []cluster
}

// cluster is a node's report of one of Cascade's clusters.
type cluster struct {
	name, service           string // of the cluster and of its endpoints
	success, errors, issued uint64 // since the message before
	// unplaced are requests in progress without an endpoint: gRPC clients report by
	// locality.
	unplaced  int
	endpoints []endpoint
}

// endpoint is a node's report of one address of a cluster.
type endpoint struct {
	address netip.AddrPort
	active  int // requests in progress
	// answers is how many responses carried the share of the KV cache in use, and share
	// is their sum.
	answers uint64
	share   float64
	// succeeded and failed count the requests that ended since the message before.
	succeeded, failed uint64
}

// The methods that gRPC requires of a message that it receives.

func (*message) ProtoMessage()              {}
func (f *message) Reset()                   { *f = message{} }
func (f *message) String() string           { return fmt.Sprintf("%d clusters of %v", len(f.clusters), f.node) }
func (f *message) Unmarshal(b []byte) error { return f.decode(b) }
func (*message) Marshal() ([]byte, error)   { return nil, errors.New("lrs: messages are only received") }

// GetNode returns the node, which interceptors bind to a certificate.
func (f *message) GetNode() *corev3.Node { return f.node }

// decode decodes a message without keeping parts of b. Unknown fields are skipped;
// values out of bounds are errors.
func (f *message) decode(b []byte) error {
	*f = message{}
	endpoints := 0
	return fields(b, func(n protowire.Number, v []byte) error {
		switch n {
		case requestNode:
			return f.decodeNode(v)
		case requestClusterStats:
			if ours, err := namesOurCluster(v); err != nil || !ours {
				return err
			}
			if len(f.clusters) == maxClusters {
				return fmt.Errorf("more than %d clusters", maxClusters)
			}
			var m endpointv3.ClusterStats
			if err := proto.Unmarshal(v, &m); err != nil {
				return errors.New("cluster_stats: not a valid ClusterStats")
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

func (f *message) decodeNode(b []byte) error {
	if f.node == nil {
		f.node = new(corev3.Node)
	}
	return fields(b, func(n protowire.Number, v []byte) error {
		to := &f.node.Id
		switch n {
		case nodeMetadata:
			return f.decodeMetadata(v)
		case nodeID:
		case nodeCluster:
			to = &f.node.Cluster
		default:
			return nil
		}
		if len(v) > maxName {
			return fmt.Errorf("node: a name has more than %d bytes", maxName)
		}
		*to = strings.ToValidUTF8(string(v), "?")
		return nil
	})
}

// decodeMetadata decodes the problems of an embedded proxy; other fields are skipped.
func (f *message) decodeMetadata(b []byte) error {
	return fields(b, func(n protowire.Number, entry []byte) error {
		if n != structFields {
			return nil
		}
		var key, value []byte
		err := fields(entry, func(n protowire.Number, v []byte) error {
			switch n {
			case entryKey:
				key = v
			case entryValue:
				value = v
			}
			return nil
		})
		if err != nil || string(key) != loadreport.ProblemsField {
			return err
		}
		var text structpb.Value
		if err := proto.Unmarshal(value, &text); err != nil {
			return errors.New("node: " + loadreport.ProblemsField + ": not a valid Value")
		}
		list := text.GetStructValue().GetFields()
		for _, kind := range slices.Sorted(maps.Keys(list)) {
			if len(f.problems) < loadreport.MaxProblems {
				f.problems = append(f.problems, loadreport.NewProblem(kind, list[kind].GetStringValue()))
			}
		}
		return nil
	})
}

func isOurs(name string) bool {
	return slices.ContainsFunc(prefixes[:], func(p string) bool { return strings.HasPrefix(name, p) })
}

// namesOurCluster decodes only the name of a ClusterStats.
func namesOurCluster(b []byte) (ours bool, err error) {
	err = fields(b, func(n protowire.Number, v []byte) error {
		if n == clusterStatsName {
			ours = isOurs(string(v))
		}
		return nil
	})
	return ours, err
}

// fields calls do for the length-delimited fields of a message, and skips the others.
func fields(b []byte, do func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errors.New("not a valid message")
		}
		b = b[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return errors.New("not a valid message")
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return errors.New("not a valid message")
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
		c.success = boundedSum(c.success, l.GetTotalSuccessfulRequests())
		c.errors = boundedSum(c.errors, l.GetTotalErrorRequests())
		c.issued = boundedSum(c.issued, l.GetTotalIssuedRequests())
		left := count(l.GetTotalRequestsInProgress())
		for _, e := range l.GetUpstreamEndpointStats() {
			a, ok := addressOf(e.GetAddress())
			if !ok {
				continue
			}
			out := endpoint{address: a, active: count(e.GetTotalRequestsInProgress())}
			out.succeeded, out.failed = min(e.GetTotalSuccessfulRequests(), maxCount), min(e.GetTotalErrorRequests(), maxCount)
			left -= out.active
			for _, metric := range e.GetLoadMetricStats() {
				if metric.GetMetricName() == resources.ShareMetric {
					out.answers, out.share = share(metric)
				}
			}
			c.endpoints = append(c.endpoints, out)
		}
		c.unplaced = min(c.unplaced+max(left, 0), maxCount)
	}
	return c
}

// share returns the number of responses with a share and the sum of the shares, each
// bounded to 0 to 1.
func share(m *endpointv3.EndpointLoadMetricStats) (answers uint64, sum float64) {
	answers = min(m.GetNumRequestsFinishedWithMetric(), maxCount)
	sum = m.GetTotalMetricValue()
	if answers == 0 || math.IsNaN(sum) {
		return 0, 0
	}
	return answers, min(max(sum, 0), float64(answers))
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

// boundedSum adds two counts of a proxy, which may be wrong.
func boundedSum(a, b uint64) uint64 { return min(a, maxCount) + min(b, maxCount) }
