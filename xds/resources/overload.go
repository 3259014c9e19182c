package resources

import (
	"time"

	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	connectionsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	heapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Bounds of an Envoy as a whole. Its listeners bound each connection and stream; only the bootstrap can bound
// all of them together.
const (
	maxHeap         = 2 << 30 // bytes
	maxConnections  = 50_000  // of clients
	overloadRefresh = 250 * time.Millisecond
	// trackedAccount is the least memory for which Envoy can reset a stream, as a power of two: 1 MiB.
	trackedAccount = 20
)

// OverloadManager returns the overload manager of a bootstrap: an Envoy whose heap is nearly full gives
// memory back to the system, then resets the streams that hold the most, and then takes no new requests.
func OverloadManager() *overloadv3.OverloadManager {
	const heap = "envoy.resource_monitors.fixed_heap"
	monitor := func(name string, m proto.Message) *overloadv3.ResourceMonitor {
		return &overloadv3.ResourceMonitor{Name: name, ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: Wrap(m)}}
	}
	above := func(action string, share float64) *overloadv3.OverloadAction {
		return &overloadv3.OverloadAction{Name: "envoy.overload_actions." + action, Triggers: []*overloadv3.Trigger{{
			Name: heap, TriggerOneof: &overloadv3.Trigger_Threshold{Threshold: &overloadv3.ThresholdTrigger{Value: share}},
		}}}
	}
	return &overloadv3.OverloadManager{
		RefreshInterval: durationpb.New(overloadRefresh),
		ResourceMonitors: []*overloadv3.ResourceMonitor{
			monitor(heap, &heapv3.FixedHeapConfig{MaxHeapSizeBytes: maxHeap}),
			monitor("envoy.resource_monitors.global_downstream_max_connections",
				&connectionsv3.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: maxConnections}),
		},
		Actions: []*overloadv3.OverloadAction{
			above("shrink_heap", 0.8),
			{Name: "envoy.overload_actions.reset_high_memory_stream", Triggers: []*overloadv3.Trigger{{
				Name: heap, TriggerOneof: &overloadv3.Trigger_Scaled{Scaled: &overloadv3.ScaledTrigger{ScalingThreshold: 0.85, SaturationThreshold: 0.95}},
			}}},
			above("stop_accepting_requests", 0.95),
			above("stop_accepting_connections", 0.98),
		},
		BufferFactoryConfig: &overloadv3.BufferFactoryConfig{MinimumAccountToTrackPowerOfTwo: trackedAccount},
	}
}
