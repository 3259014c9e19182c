package client

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// Envoy's defaults for what a listener may leave out.
const (
	defaultBufferLimit      = 1 << 20         // bytes
	defaultStreamIdle       = 5 * time.Minute // stream_idle_timeout
	defaultMaxHeaderKiB     = 60
	defaultDownstreamIdle   = time.Hour // of a connection without requests
	defaultMaxDownstreamH2s = 1024      // streams per connection
)

// Listener is an address and the HTTP connection manager behind it.
type Listener struct {
	Name    string
	Version string
	Address string // host:port; empty for an API listener, which no proxy binds
	// Secret is the SDS name of the certificate for TLS with clients; empty means plain text.
	// This client does not fetch it.
	Secret string
	// BufferLimit bounds what is held of one request's body, in bytes.
	BufferLimit int64

	RouteTable string      // name of the RDS resource, or of Inline
	Inline     *RouteTable // nil when routes come by RDS

	Early       HeaderOps    // header mutations before the first route lookup
	ECDSFilters []ECDSFilter // filters that come by ECDS, in order

	StreamIdle       time.Duration // no byte either way for so long ends a stream; 0 = never
	ConnectionIdle   time.Duration // a connection without requests; 0 = never
	HeadersTimeout   time.Duration // for a request's headers; 0 = never
	MaxHeaderBytes   int
	MaxStreams       uint32 // HTTP/2 streams per connection
	StreamWindow     int    // HTTP/2 receive window of a stream, in bytes; 0 = the server's own
	ConnectionWindow int    // of a connection
	AccessLog        string // file for one line per request; "" for none
	RequestID        bool   // add x-request-id when it is missing
	ForwardedFor     bool   // append the peer to x-forwarded-for
	StripPort        bool   // drop any port from the host before the lookup
	UnescapeSlashes  bool   // decode %2F and %5C of the path before the lookup

	fetchTimeout time.Duration // of the route table
}

// ECDSFilter is a place in the filter chain that ECDS fills.
type ECDSFilter struct {
	Name    string     // of the ECDS resource
	Types   []string   // type URLs it accepts
	Default *Extension // until there is a resource; nil: none
	NoWait  bool       // the default serves while the first fetch is under way

	fetchTimeout time.Duration
}

// accepts returns an error if the filter does not accept a type.
func (s ECDSFilter) accepts(typeURL string) error {
	for _, t := range s.Types {
		if strings.TrimPrefix(t, typePrefix) == strings.TrimPrefix(typeURL, typePrefix) {
			return nil
		}
	}
	return fmt.Errorf("filter %s: the config has type %s, the filter accepts %s", s.Name, typeURL, strings.Join(s.Types, ", "))
}

func decodeListener(name string, a *anypb.Any) (any, error) {
	f := new(faults)
	l := openNamed(f, "listener", "name", name, a, &listenerv3.Listener{}, (*listenerv3.Listener).GetName)
	out := &Listener{Name: name, BufferLimit: defaultBufferLimit}
	if l.GetApiListener() != nil {
		// For gRPC clients; a proxy has nothing to bind and nothing to check.
		return out, f.err
	}
	f.only("listener", l, "name", "address", "stat_prefix", "filter_chains", "per_connection_buffer_limit_bytes", "metadata",
		"drain_type", "traffic_direction", "enable_reuse_port", "reuse_port", "access_log", "tcp_backlog_size", "ignore_global_conn_limit",
		"listener_filters_timeout", "continue_on_listener_filters_timeout", "socket_options", "tcp_keepalive")
	out.Address = decodeAddress(f, "listener.address", l.GetAddress())
	if b := l.GetPerConnectionBufferLimitBytes(); b != nil {
		out.BufferLimit = int64(b.GetValue())
	}
	if len(l.GetFilterChains()) != 1 || len(l.GetFilterChains()[0].GetFilters()) != 1 {
		f.addf("listener.filter_chains: must be one chain of one filter, the HTTP connection manager")
		return out, f.err
	}
	chain := l.GetFilterChains()[0]
	f.only("listener.filter_chains[0]", chain, "name", "filters", "metadata", "transport_socket_connect_timeout", "transport_socket")
	out.Secret = decodeEdge(f, "listener.filter_chains[0].transport_socket.typed_config", chain.GetTransportSocket())
	const at = "listener.filter_chains[0].filters[0].typed_config"
	out.decodeManager(f, at, open(f, at, chain.GetFilters()[0].GetTypedConfig(), &hcmv3.HttpConnectionManager{}))
	return out, f.err
}

// decodeEdge decodes TLS with clients, and returns the name of its only secret; "" without
// TLS.
func decodeEdge(f *faults, at string, s *corev3.TransportSocket) (secret string) {
	if s == nil || s.GetTypedConfig().GetTypeUrl() == rawBufferType {
		return ""
	}
	tls := open(f, at, s.GetTypedConfig(), &tlsv3.DownstreamTlsContext{})
	f.only(at, tls, "common_tls_context")
	c := tls.GetCommonTlsContext()
	f.only(at+".common_tls_context", c, "tls_params", "alpn_protocols", "tls_certificate_sds_secret_configs")
	if sds := c.GetTlsCertificateSdsSecretConfigs(); len(sds) == 1 && sds[0].GetName() != "" {
		return sds[0].GetName()
	}
	f.addf("%s.common_tls_context.tls_certificate_sds_secret_configs: must name one secret", at)
	return ""
}

func decodeAddress(f *faults, at string, a *corev3.Address) string {
	s := a.GetSocketAddress()
	switch {
	case s == nil:
		f.addf("%s.socket_address: missing; this client knows no other kind", at)
	case s.GetProtocol() != corev3.SocketAddress_TCP || s.GetNamedPort() != "":
		f.addf("%s.socket_address: must be TCP with a port number", at)
	case s.GetAddress() == "" || s.GetPortValue() > 65535:
		f.addf("%s.socket_address: %q port %d is no address", at, s.GetAddress(), s.GetPortValue())
	}
	return net.JoinHostPort(s.GetAddress(), strconv.Itoa(int(s.GetPortValue())))
}

func (l *Listener) decodeManager(f *faults, at string, m *hcmv3.HttpConnectionManager) {
	// Access logs but those to one file, and tracing, change no answer and are left out silently.
	f.only(at, m, "codec_type", "stat_prefix", "rds", "route_config", "http_filters", "tracing", "common_http_protocol_options",
		"http_protocol_options", "http2_protocol_options", "server_name", "server_header_transformation", "max_request_headers_kb",
		"stream_idle_timeout", "request_headers_timeout", "drain_timeout", "delayed_close_timeout", "access_log", "access_log_options",
		"use_remote_address", "xff_num_trusted_hops", "skip_xff_append", "internal_address_config", "generate_request_id",
		"preserve_external_request_id", "always_set_request_id_in_response", "early_header_mutation_extensions", "normalize_path",
		"merge_slashes", "path_with_escaped_slashes_action", "strip_any_host_port", "add_user_agent", "stream_error_on_invalid_http_message",
		"stream_flush_timeout", "append_x_forwarded_port")
	common := m.GetCommonHttpProtocolOptions()
	f.only(at+".common_http_protocol_options", common, "idle_timeout", "max_headers_count", "headers_with_underscores_action")
	l.StreamIdle = f.period(at+".stream_idle_timeout", m.GetStreamIdleTimeout(), defaultStreamIdle)
	l.ConnectionIdle = f.period(at+".common_http_protocol_options.idle_timeout", common.GetIdleTimeout(), defaultDownstreamIdle)
	l.HeadersTimeout = f.period(at+".request_headers_timeout", m.GetRequestHeadersTimeout(), 0)
	l.MaxHeaderBytes = defaultMaxHeaderKiB << 10
	if k := m.GetMaxRequestHeadersKb().GetValue(); k > 0 {
		l.MaxHeaderBytes = int(min(k, 8192)) << 10
	}
	l.MaxStreams = defaultMaxDownstreamH2s
	h2 := m.GetHttp2ProtocolOptions()
	if n := h2.GetMaxConcurrentStreams().GetValue(); n > 0 {
		l.MaxStreams = n
	}
	l.StreamWindow = int(min(h2.GetInitialStreamWindowSize().GetValue(), math.MaxInt32))
	l.ConnectionWindow = int(min(h2.GetInitialConnectionWindowSize().GetValue(), math.MaxInt32))
	l.ForwardedFor = m.GetUseRemoteAddress().GetValue() && !m.GetSkipXffAppend()
	l.AccessLog = accessLogFile(m.GetAccessLog())
	l.RequestID = m.GetGenerateRequestId() == nil || m.GetGenerateRequestId().GetValue()
	l.StripPort = m.GetStripAnyHostPort()
	l.UnescapeSlashes = m.GetPathWithEscapedSlashesAction() == hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	for i, e := range m.GetEarlyHeaderMutationExtensions() {
		at := fmt.Sprintf("%s.early_header_mutation_extensions[%d]", at, i)
		early := open(f, at, e.GetTypedConfig(), &earlyv3.HeaderMutation{})
		l.Early = l.Early.join(decodeMutations(f, at+".mutations", early.GetMutations()))
	}
	l.decodeRoutes(f, at, m)
	l.decodeFilters(f, at, m.GetHttpFilters())
}

// accessLogFile returns the file of the first access log that is a file and has no filter.
func accessLogFile(all []*accesslogv3.AccessLog) string {
	for _, a := range all {
		var file filelogv3.FileAccessLog
		if a.GetFilter() == nil && a.GetTypedConfig().UnmarshalTo(&file) == nil {
			return file.GetPath()
		}
	}
	return ""
}

func (l *Listener) decodeRoutes(f *faults, at string, m *hcmv3.HttpConnectionManager) {
	switch r := m.GetRouteSpecifier().(type) {
	case *hcmv3.HttpConnectionManager_Rds:
		l.RouteTable = r.Rds.GetRouteConfigName()
		if l.RouteTable == "" {
			f.addf("%s.rds.route_config_name: must not be empty", at)
		}
		l.fetchTimeout = decodeSource(f, at+".rds.config_source", r.Rds.GetConfigSource())
	case *hcmv3.HttpConnectionManager_RouteConfig:
		l.Inline = newRouteTable(f, at+".route_config", r.RouteConfig)
	default:
		f.addf("%s: must name a route table by rds or hold one in route_config", at)
	}
}

// decodeSource accepts the stream the resource came on, and nothing else. It returns how
// long to wait for the resource.
func decodeSource(f *faults, at string, s *corev3.ConfigSource) time.Duration {
	if s.GetAds() == nil && s.GetSelf() == nil {
		f.addf("%s: must be ads", at)
	}
	return f.period(at+".initial_fetch_timeout", s.GetInitialFetchTimeout(), DefaultFetchTimeout)
}

func (l *Listener) decodeFilters(f *faults, at string, filters []*hcmv3.HttpFilter) {
	for i, filter := range filters {
		at := fmt.Sprintf("%s.http_filters[%d]", at, i)
		if d := filter.GetConfigDiscovery(); d != nil {
			l.ECDSFilters = append(l.ECDSFilters, decodeSlot(f, at+".config_discovery", filter.GetName(), d))
			continue
		}
		switch t := filter.GetTypedConfig().GetTypeUrl(); {
		case t == routerType:
			if i < len(filters)-1 {
				f.addf("%s: the router must be the last filter", at)
			}
			return
		case t == extProcType, t == onDemandType, filter.GetDisabled(), filter.GetIsOptional():
			// This client makes no callouts. These filters only add what the data plane's own
			// estimator adds, or are disabled.
		default:
			f.addf("%s: filter %q of type %s is not supported by this client", at, filter.GetName(), strings.TrimPrefix(t, typePrefix))
		}
	}
	f.addf("%s.http_filters: the last one must be the router", at)
}

func decodeSlot(f *faults, at, name string, d *corev3.ExtensionConfigSource) ECDSFilter {
	s := ECDSFilter{Name: name, Types: d.GetTypeUrls(), NoWait: d.GetApplyDefaultConfigWithoutWarming()}
	if name == "" {
		f.addf("%s: the filter must have a name", at)
	}
	s.fetchTimeout = decodeSource(f, at+".config_source", d.GetConfigSource())
	if c := d.GetDefaultConfig(); c != nil {
		s.Default = decodeFilterConfig(f, at+".default_config", name, c)
		if err := s.accepts(c.GetTypeUrl()); err != nil {
			f.addf("%s.default_config: %w", at, err)
		}
	}
	return s
}
