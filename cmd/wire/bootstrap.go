package wire

import (
	"cmp"
	"fmt"
	"net"
	"path/filepath"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Bootstrap renders the bootstrap of an Envoy of this fleet. An empty XDS is
// the fleet's control.listen. Under TLS, Envoy shows the fleet's certificate
// and wants the control plane's to carry the address it dials.
func (f *Fleet) Bootstrap(b resources.BootstrapConfig) ([]byte, error) {
	b.XDS = cmp.Or(b.XDS, f.Fleet.Control.Listen)
	plain, err := resources.Bootstrap(b)
	if err != nil || f.Fleet.TLS.Cert == "" {
		return plain, err
	}
	var boot bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(plain, &boot); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	host, _, err := net.SplitHostPort(b.XDS)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: control plane: %w", err)
	}
	socket, err := upstreamTLS(f.TLS(), host)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: tls: %w", err)
	}
	for _, c := range boot.StaticResources.Clusters {
		if c.Name == resources.XDSCluster {
			c.TransportSocket = socket
		}
	}
	return resources.Text(&boot)
}

// upstreamTLS is Envoy's side of mutual TLS with the host, from PEM files.
func upstreamTLS(files config.TLS, host string) (*corev3.TransportSocket, error) {
	var failed error
	file := func(path string) *corev3.DataSource {
		abs, err := filepath.Abs(path)
		if err != nil {
			failed = err
		}
		return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: abs}}
	}
	san := &tlsv3.SubjectAltNameMatcher{
		SanType: tlsv3.SubjectAltNameMatcher_DNS,
		Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: host}},
	}
	context := &tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsParams:       &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: file(files.Cert), PrivateKey: file(files.Key)}},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa:                 file(files.CA),
			MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{san},
		}},
		AlpnProtocols: []string{"h2"},
	}}
	if net.ParseIP(host) != nil {
		san.SanType = tlsv3.SubjectAltNameMatcher_IP_ADDRESS
	} else {
		context.Sni = host
	}
	typed, err := anypb.New(context)
	if failed != nil {
		err = failed
	}
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typed}}, nil
}
