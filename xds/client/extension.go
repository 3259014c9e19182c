package client

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Type URLs of nested messages that the client understands.
const (
	typePrefix             = "type.googleapis.com/"
	routerType             = typePrefix + "envoy.extensions.filters.http.router.v3.Router"
	extProcType            = typePrefix + "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
	onDemandType           = typePrefix + "envoy.extensions.filters.http.on_demand.v3.OnDemand"
	headerMutationType     = typePrefix + "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
	wasmType               = typePrefix + "envoy.extensions.filters.http.wasm.v3.Wasm"
	earlyMutationType      = typePrefix + "envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation"
	managerType            = typePrefix + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	extProcPerRouteType    = typePrefix + "envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"
	filterConfigType       = typePrefix + "envoy.config.route.v3.FilterConfig"
	maglevType             = typePrefix + "envoy.extensions.load_balancing_policies.maglev.v3.Maglev"
	roundRobinType         = typePrefix + "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin"
	wrrLocalityType        = typePrefix + "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality"
	previousPrioritiesType = typePrefix + "envoy.extensions.retry.priority.previous_priorities.v3.PreviousPrioritiesConfig"
	previousHostsType      = typePrefix + "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
	upstreamProtocolsType  = typePrefix + "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	upstreamProtocolsKey   = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	rawBufferType          = typePrefix + "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"
)

// Extension is a filter config from an ECDS resource or from a slot's default.
type Extension struct {
	Name    string
	Version string // of the ECDS resource; empty for a default
	Type    string // type URL
	// Mutations are the request header changes of a header_mutation filter. As in
	// Envoy, they are applied after the route was chosen and do not change it. It is
	// empty for every other type, because this client runs no Wasm and no callouts.
	Mutations HeaderOps
}

// openExtension unpacks a TypedExtensionConfig and returns its config.
func openExtension(f *faults, name string, a *anypb.Any) *anypb.Any {
	return openNamed(f, "extension", "name", name, a, &corev3.TypedExtensionConfig{}, (*corev3.TypedExtensionConfig).GetName).GetTypedConfig()
}

// decodeExtension decodes a TypedExtensionConfig.
func decodeExtension(name string, a *anypb.Any) (any, error) {
	f := new(faults)
	e := decodeFilterConfig(f, "extension.typed_config", name, openExtension(f, name, a))
	return e, f.err
}

// decodeSlotConfig decodes the TypedExtensionConfig of a policy slot.
func (m *machine) decodeSlotConfig(name string, a *anypb.Any) (any, error) {
	f := new(faults)
	config := openExtension(f, name, a)
	if config == nil {
		f.addf("extension.typed_config: must not be empty")
	}
	if f.err == nil && m.checkSlot != nil {
		f.err = m.checkSlot(name, config)
	}
	return &SlotConfig{Name: name, Config: config}, f.err
}

// decodeFilterConfig decodes the config of an HTTP filter in a slot.
func decodeFilterConfig(f *faults, at, name string, a *anypb.Any) *Extension {
	e := &Extension{Name: name, Type: a.GetTypeUrl()}
	switch e.Type {
	case "":
		f.addf("%s: must not be empty", at)
	case headerMutationType:
		m := open(f, at, a, &headermutationv3.HeaderMutation{}).GetMutations()
		e.Mutations = decodeMutations(f, at+".mutations.request_mutations", m.GetRequestMutations())
		f.only(at+".mutations", m, "request_mutations")
	case wasmType, extProcType:
		// This client does not run the filter; the data plane uses its own estimator
		// instead.
	default:
		f.addf("%s: %s is not supported by this client", at, strings.TrimPrefix(e.Type, typePrefix))
	}
	return e
}
