package resources

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	roundrobinv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies"
)

// proveClusters checks that the clusters of the stages are complete, have sufficient
// limits and eject quickly.
func (p *proof) proveClusters(s Set) error {
	type fleet struct {
		spelling naming
		model    string
	}
	var fleets []fleet
	services := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(p.clusters)) {
		c := p.clusters[name]
		if c.GetType() != clusterv3.Cluster_EDS {
			continue
		}
		y, model, k, ok := stageOf(name)
		if !ok {
			return fmt.Errorf("cluster %q: uses EDS, but is not the cluster of a stage", name)
		}
		if err := p.facts[resourceKey{ClusterType, name}].proveOnce(func() error { return proveStageCluster(c, y, y.endpoints(model, k)) }); err != nil {
			return fmt.Errorf("cluster %q: %w", name, err)
		}
		if s.Get(ClusterType, name).Unlisted != (y.kind != adsClient) {
			return fmt.Errorf("cluster %q: must be listed if and only if it is for ADS clients", name)
		}
		services[y.endpoints(model, k)] = true
		if f := (fleet{y, model}); !slices.Contains(fleets, f) {
			fleets = append(fleets, f)
		}
	}
	for _, f := range fleets {
		for k := range policies.MaxStages {
			if name := f.spelling.cluster(f.model, k); p.clusters[name] == nil {
				return fmt.Errorf("model %q: cluster %q is missing; every stage must have one, used or not", f.model, name)
			}
			if name := f.spelling.endpoints(f.model, k); p.assignments[name] == nil {
				return fmt.Errorf("model %q: endpoints %q are missing", f.model, name)
			}
		}
		if err := p.proveFailover(f.spelling, f.model); err != nil {
			return fmt.Errorf("model %q: %w", f.model, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.assignments)) {
		if !services[name] {
			return fmt.Errorf("endpoints %q do not belong to any cluster", name)
		}
	}
	return nil
}

func proveStageCluster(c *clusterv3.Cluster, y naming, service string) error {
	if got := c.EdsClusterConfig.GetServiceName(); got != service {
		return fmt.Errorf("EDS name is %q, want %q", got, service)
	}
	if !proto.Equal(c.EdsClusterConfig.GetEdsConfig(), y.source()) {
		return errors.New("the EDS config source must match the cluster's name: ADS, or the xDS cluster in the name")
	}
	if !slices.ContainsFunc(c.LoadBalancingPolicy.GetPolicies(), isRoundRobin) {
		return errors.New("load balancing: round robin must be among the policies, because every client knows it")
	}
	if len(c.CircuitBreakers.GetThresholds()) == 0 {
		return errors.New("circuit breakers: the defaults refuse the 1,025th request")
	}
	for _, t := range c.CircuitBreakers.GetThresholds() {
		for _, n := range [...]uint32{
			t.GetMaxConnections().GetValue(), t.GetMaxPendingRequests().GetValue(),
			t.GetMaxRequests().GetValue(), t.GetMaxRetries().GetValue(),
		} {
			if n < minMaxRequests {
				return fmt.Errorf("circuit breakers: %d, want at least %d", n, minMaxRequests)
			}
		}
	}
	if got := c.OutlierDetection.GetMaxEjectionPercent().GetValue(); got != 100 {
		return fmt.Errorf("outlier detection: ejects up to %d %%, want 100", got)
	}
	if !c.OutlierDetection.GetSplitExternalLocalOriginErrors() ||
		c.OutlierDetection.GetConsecutiveLocalOriginFailure().GetValue() == 0 ||
		c.OutlierDetection.GetEnforcingConsecutiveLocalOriginFailure().GetValue() != 100 {
		return errors.New("outlier detection: connection failures must eject")
	}
	options := new(upstreamsv3.HttpProtocolOptions)
	packed := c.TypedExtensionProtocolOptions[protocolOptionsKey]
	if packed == nil {
		return errors.New("HTTP/2 options are missing")
	}
	if err := packed.UnmarshalTo(options); err != nil {
		return err
	}
	if n := options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetMaxConcurrentStreams().GetValue(); n < minMaxRequests {
		return fmt.Errorf("HTTP/2: %d concurrent streams, want at least %d", n, minMaxRequests)
	}
	return nil
}

func isRoundRobin(lb *clusterv3.LoadBalancingPolicy_Policy) bool {
	return lb.GetTypedExtensionConfig().GetTypedConfig().MessageIs(&roundrobinv3.RoundRobin{})
}

// proveFailover checks for every used stage that the next longer stage has the next
// priority.
func (p *proof) proveFailover(y naming, model string) error {
	stages := p.used(model)
	for k := 0; k+1 < stages; k++ {
		name, longer := y.endpoints(model, k), y.endpoints(model, k+1)
		f, next := p.facts[resourceKey{EndpointType, name}], p.facts[resourceKey{EndpointType, longer}]
		if f.nextStage == next {
			continue
		}
		if err := proveNextStageOrder(p.assignments[name], p.assignments[longer]); err != nil {
			return fmt.Errorf("endpoints %q: %w", name, err)
		}
		f.nextStage = next
	}
	return nil
}

// proveNextStageOrder checks that the replicas of the next longer stage have priority 0
// or 1 in a stage's assignment.
func proveNextStageOrder(stage, longer *endpointv3.ClusterLoadAssignment) error {
	at := make(map[string]uint32)
	for _, l := range stage.Endpoints {
		for _, e := range l.LbEndpoints {
			at[addressOf(e)] = l.Priority
		}
	}
	for _, l := range longer.Endpoints {
		for _, e := range l.LbEndpoints {
			if got, ok := at[addressOf(e)]; l.Priority == 0 && (!ok || got > 1) {
				return fmt.Errorf("%s serves the next longer stage and must be priority 0 or 1", addressOf(e))
			}
		}
	}
	return nil
}

// used returns how many stages of a model the routes lead to.
func (p *proof) used(model string) int {
	n := 0
	for name, rc := range p.routes {
		n = max(n, p.facts[resourceKey{RouteType, name}].stagesOf(rc)[model])
	}
	return n
}

// proveAssignments checks the endpoints for what Envoy mishandles or gRPC rejects.
func (p *proof) proveAssignments(Set) error {
	for _, name := range slices.Sorted(maps.Keys(p.assignments)) {
		if p.copies[name] {
			continue
		}
		if err := p.facts[resourceKey{EndpointType, name}].proveOnce(func() error { return proveAssignment(p.assignments[name]) }); err != nil {
			return fmt.Errorf("endpoints %q: %w", name, err)
		}
	}
	return nil
}

func proveAssignment(cla *endpointv3.ClusterLoadAssignment) error {
	type zoneAt struct {
		priority     uint32
		region, zone string
	}
	addresses := make(map[string]bool)
	places := make(map[zoneAt]bool)
	weights := make(map[uint32]uint64) // by priority
	for _, l := range cla.Endpoints {
		zone := l.GetLocality().GetZone()
		if l.GetLocality().GetRegion() == "" || zone == "" {
			return fmt.Errorf("a locality of priority %d has no region or zone", l.Priority)
		}
		at := zoneAt{l.Priority, l.Locality.Region, zone}
		if places[at] {
			return fmt.Errorf("zone %q occurs twice in priority %d", zone, l.Priority)
		}
		places[at] = true
		if l.GetLoadBalancingWeight().GetValue() == 0 {
			return fmt.Errorf("zone %q of priority %d has no weight", zone, l.Priority)
		}
		if weights[l.Priority] += uint64(l.LoadBalancingWeight.Value); weights[l.Priority] > math.MaxUint32 {
			return fmt.Errorf("the weights of priority %d add up to more than 32 bits", l.Priority)
		}
		if len(l.LbEndpoints) == 0 {
			return fmt.Errorf("zone %q of priority %d is empty", zone, l.Priority)
		}
		sum := uint64(0)
		for _, e := range l.LbEndpoints {
			if _, err := hostPort(addressOf(e)); err != nil {
				return err
			}
			if addresses[addressOf(e)] {
				return fmt.Errorf("address %s occurs twice", addressOf(e))
			}
			addresses[addressOf(e)] = true
			if e.GetLoadBalancingWeight().GetValue() == 0 {
				return fmt.Errorf("%s has no weight", addressOf(e))
			}
			if sum += uint64(e.LoadBalancingWeight.Value); sum > math.MaxUint32 {
				return fmt.Errorf("the weights of zone %q add up to more than 32 bits", zone)
			}
			if ReplicaOf(e) == "" {
				return fmt.Errorf("%s: metadata %q names no id", addressOf(e), MetadataKey)
			}
		}
	}
	for priority := range uint32(len(weights)) {
		if weights[priority] == 0 {
			return fmt.Errorf("priority %d is missing", priority)
		}
	}
	if len(addresses) == 0 {
		return errors.New("has no endpoint")
	}
	return nil
}

// addressOf returns the endpoint's address as IP:port.
func addressOf(e *endpointv3.LbEndpoint) string {
	a := e.GetEndpoint().GetAddress().GetSocketAddress()
	return net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue())))
}
