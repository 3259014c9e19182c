package client

import (
	"errors"
	"fmt"
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

// decodeExtension decodes a TypedExtensionConfig.
func decodeExtension(name string, a *anypb.Any) (any, error) {
	c, err := open("extension", a, &corev3.TypedExtensionConfig{})
	if err != nil {
		return nil, err
	}
	if c.GetName() != name {
		return nil, fmt.Errorf("extension.name: is %q, not the resource's", c.GetName())
	}
	return decodeFilterConfig("extension.typed_config", name, c.GetTypedConfig())
}

// decodeSlotConfig decodes the TypedExtensionConfig of a policy slot.
func (m *machine) decodeSlotConfig(name string, a *anypb.Any) (any, error) {
	c, err := open("extension", a, &corev3.TypedExtensionConfig{})
	if err != nil {
		return nil, err
	}
	if c.GetName() != name {
		return nil, fmt.Errorf("extension.name: is %q, not the resource's", c.GetName())
	}
	if c.GetTypedConfig() == nil {
		return nil, errors.New("extension.typed_config: must not be empty")
	}
	if m.checkSlot != nil {
		if err := m.checkSlot(name, c.GetTypedConfig()); err != nil {
			return nil, err
		}
	}
	return &SlotConfig{Name: name, Config: c.GetTypedConfig()}, nil
}

// decodeFilterConfig decodes the config of an HTTP filter in a slot.
func decodeFilterConfig(at, name string, a *anypb.Any) (*Extension, error) {
	e := &Extension{Name: name, Type: a.GetTypeUrl()}
	switch e.Type {
	case "":
		return nil, errors.New(at + ": must not be empty")
	case headerMutationType:
		m, err := open(at, a, &headermutationv3.HeaderMutation{})
		if err != nil {
			return nil, err
		}
		if e.Mutations, err = decodeMutations(at+".mutations.request_mutations", m.GetMutations().GetRequestMutations()); err != nil {
			return nil, err
		}
		if err := only(at+".mutations", m.GetMutations(), "request_mutations"); err != nil {
			return nil, err
		}
	case wasmType, extProcType:
		// This client does not run the filter; the data plane uses its own estimator
		// instead.
	default:
		return nil, fmt.Errorf("%s: %s is not supported by this client", at, strings.TrimPrefix(e.Type, typePrefix))
	}
	return e, nil
}
