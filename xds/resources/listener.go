package resources

import (
	"net/netip"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/policies/length"
)

// Bounds of the memory that a client can occupy in a proxy by reading no answers.
const (
	// ClientBuffer is how much of an answer waits for its client, and the HTTP/2 receive
	// window of a request, in bytes.
	ClientBuffer  = 256 << 10
	ClientStreams = 1000    // HTTP/2 streams per connection
	ClientWindow  = 1 << 20 // HTTP/2 receive window of a connection
)

// HeadersTimeout bounds the arrival of a request's headers.
const HeadersTimeout = 10 * time.Second

// Type URLs that the estimator's ECDS filter accepts.
const (
	headerMutationType = "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation"
	wasmType           = "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"
)

// addressListener returns a proxy's listener. Proxies keep it for their whole life: an
// edited listener drains, which ends token streams. So it already holds every filter
// that a later feature needs, disabled, and all changes come by RDS and ECDS.
func addressListener(s Settings) *listenerv3.Listener {
	hcm := &hcmv3.HttpConnectionManager{
		StatPrefix: ListenerName,
		RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
			ConfigSource:    ads(),
			RouteConfigName: RouteName,
		}},
		HttpFilters: []*hcmv3.HttpFilter{
			DiscoveredLengthFilter(ads()),
			extProc(s),
			{
				Name:       "envoy.filters.http.on_demand",
				ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Wrap(&ondemandv3.OnDemand{})},
			},
			RouterFilter(),
		},
		EarlyHeaderMutationExtensions: []*corev3.TypedExtensionConfig{StripControlHeaders()},
		UseRemoteAddress:              wrapperspb.Bool(true),
		InternalAddressConfig:         noInternalAddress(),
		StreamIdleTimeout:             durationpb.New(s.IdleTimeout),
		RequestHeadersTimeout:         durationpb.New(HeadersTimeout),
		Http2ProtocolOptions:          ClientHTTP2Options(),
	}
	NormalizePaths(hcm)
	if s.AccessLog != "" {
		hcm.AccessLog = []*accesslogv3.AccessLog{accessLog(s.AccessLog)}
	}
	if s.TraceCollector != "" {
		hcm.Tracing = tracing(s)
	}
	l := &listenerv3.Listener{
		Name:                          ListenerName,
		Address:                       socketAddress(netip.MustParseAddrPort(s.Listen)),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(ClientBuffer),
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: Wrap(hcm)},
			}},
		}},
	}
	if s.EdgeTLS {
		l.FilterChains[0].TransportSocket = edgeSocket()
	}
	return l
}

// ClientHTTP2Options returns the HTTP/2 options of a listener for clients.
func ClientHTTP2Options() *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{
		MaxConcurrentStreams:        wrapperspb.UInt32(ClientStreams),
		InitialStreamWindowSize:     wrapperspb.UInt32(ClientBuffer),
		InitialConnectionWindowSize: wrapperspb.UInt32(ClientWindow),
	}
}

// noInternalAddress makes no client internal: without a range, some versions of Envoy trust every
// private address. No client has the address of this one.
func noInternalAddress() *hcmv3.HttpConnectionManager_InternalAddressConfig {
	return &hcmv3.HttpConnectionManager_InternalAddressConfig{CidrRanges: []*corev3.CidrRange{
		{AddressPrefix: "0.0.0.0", PrefixLen: wrapperspb.UInt32(32)},
	}}
}

// NormalizePaths has a listener decode escaped slashes and resolve dot segments before the
// first route lookup, so that the route table judges the path that a replica will see. Empty
// segments stay: no path of the public API has one.
func NormalizePaths(hcm *hcmv3.HttpConnectionManager) {
	hcm.NormalizePath = wrapperspb.Bool(true)
	hcm.PathWithEscapedSlashesAction = hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
}

// EnvoyPrefix is the prefix of the headers that control Envoy: its retries, timeouts and attempts.
const EnvoyPrefix = "x-envoy-"

// StripControlHeaders removes headers that only Cascade or Envoy itself may set from a
// client's request. It runs before the first route lookup; the HTTP filter of the same kind
// would remove the header but keep the route chosen by it. A header sent twice would
// otherwise match by either value.
func StripControlHeaders() *corev3.TypedExtensionConfig {
	prefixed := func(prefix string) *mutationv3.HeaderMutation {
		return &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_RemoveOnMatch_{RemoveOnMatch: &mutationv3.HeaderMutation_RemoveOnMatch{
			KeyMatcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}},
		}}}
	}
	return &corev3.TypedExtensionConfig{
		Name: "envoy.http.early_header_mutation.header_mutation",
		TypedConfig: Wrap(&earlyv3.HeaderMutation{Mutations: []*mutationv3.HeaderMutation{
			{Action: &mutationv3.HeaderMutation_Remove{Remove: length.ModelHeader}},
			prefixed(length.ControlPrefix), prefixed(EnvoyPrefix),
		}}),
	}
}

// DiscoveredLengthFilter is the filter of an estimator that runs inside the proxy and
// comes by ECDS from source. Without a configuration, the filter does nothing.
func DiscoveredLengthFilter(source *corev3.ConfigSource) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{
		Name: LengthFilter,
		ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
			ConfigSource:                     source,
			DefaultConfig:                    Wrap(&headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{}}),
			ApplyDefaultConfigWithoutWarming: true,
			TypeUrls:                         []string{headerMutationType, wasmType},
		}},
	}
}

// extProc returns the filter that calls the length service, on routes that enable it.
// It sends the headers only, and the service asks for the body if they do not suffice.
// A slow or dead service delays a request by the timeout but never fails it.
func extProc(s Settings) *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{
		Name:     ExtProcFilter,
		Disabled: true,
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Wrap(&extprocv3.ExternalProcessor{
			GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: LengthCluster},
			}},
			ProcessingMode: &extprocv3.ProcessingMode{
				RequestHeaderMode:  extprocv3.ProcessingMode_SEND,
				ResponseHeaderMode: extprocv3.ProcessingMode_SKIP,
				RequestBodyMode:    extprocv3.ProcessingMode_NONE,
			},
			AllowModeOverride: true,
			FailureModeAllow:  true,
			StatusOnError:     &typev3.HttpStatus{Code: typev3.StatusCode_ServiceUnavailable}, // of routes that do not allow it
			MessageTimeout:    durationpb.New(s.LengthTimeout),
			// Select the route again by the headers that the response sets.
			RouteCacheAction: extprocv3.ExternalProcessor_CLEAR,
			MutationRules: &mutationv3.HeaderMutationRules{
				DisallowAll: wrapperspb.Bool(true),
				AllowExpression: &matcherv3.RegexMatcher{
					Regex: length.ControlPrefix + ".*|" + length.ModelHeader + "|x-gateway-destination-endpoint",
				},
			},
		})},
	}
}

// accessLog writes one JSON object per request.
func accessLog(path string) *accesslogv3.AccessLog {
	fields := map[string]string{
		"start":    "%START_TIME%",
		"method":   "%REQ(:METHOD)%",
		"path":     "%REQ(:PATH)%",
		"status":   "%RESPONSE_CODE%",
		"flags":    "%RESPONSE_FLAGS%",
		"received": "%BYTES_RECEIVED%",
		"sent":     "%BYTES_SENT%",
		"ms":       "%DURATION%",
		"route":    "%ROUTE_NAME%",
		"cluster":  "%UPSTREAM_CLUSTER%",
		"upstream": "%UPSTREAM_HOST%",
		"attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
		"model":    "%REQ(" + length.ModelHeader + ")%",
		"tokens":   "%REQ(" + length.TokensHeader + ")%",
		"id":       "%REQ(X-REQUEST-ID)%",
	}
	format := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(fields))}
	for k, f := range fields {
		format.Fields[k] = structpb.NewStringValue(f)
	}
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.file",
		ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: Wrap(&filelogv3.FileAccessLog{
			Path: path,
			AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
				Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: format},
			}},
		})},
	}
}

func tracing(s Settings) *hcmv3.HttpConnectionManager_Tracing {
	return &hcmv3.HttpConnectionManager_Tracing{
		RandomSampling: &typev3.Percent{Value: 100 * s.TraceShare},
		Provider: &tracev3.Tracing_Http{
			Name: "envoy.tracers.opentelemetry",
			ConfigType: &tracev3.Tracing_Http_TypedConfig{TypedConfig: Wrap(&tracev3.OpenTelemetryConfig{
				ServiceName: "cascade",
				GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: TraceCluster},
				}},
			})},
		},
	}
}
