package wiring

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// BootstrapFile is one of the files that BootstrapFiles returns; the others are resources.CertificateFile and
// resources.AuthorityFile.
const BootstrapFile = "bootstrap.json"

// Bootstrap renders the bootstrap of an Envoy of this fleet. An empty b.XDS stands
// for all the fleet's control planes. With TLS, Envoy presents the certificate that
// the fleet file names for its node id, and requires that of the control plane:
// one with its identity or, without a trust domain, one that carries the dialled
// address. Envoy reads the PEM files once; see BootstrapFiles for files that
// rotate.
func (f *Fleet) Bootstrap(b resources.BootstrapConfig) ([]byte, error) {
	if t := f.Fleet.TLS; t.ServesRequests() {
		return nil, fmt.Errorf("bootstrap: with tls, Envoy presents a certificate to migrators, which it reads through files in tls.envoy_dir: write them with --out %s, or set tls.plaintext.requests", t.EnvoyDir)
	}
	return f.bootstrap(b, func(c *tlsv3.CommonTlsContext, own *tlsv3.TlsCertificate, peers *tlsv3.CertificateValidationContext) error {
		c.TlsCertificates = []*tlsv3.TlsCertificate{own}
		c.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: peers}
		return nil
	})
}

// BootstrapFiles renders the same bootstrap as files of the directory dir, by
// name. With TLS, two of them are SDS files: Envoy reads its certificate and the
// authorities through them, for the control plane and for migrators, and again whenever a file is renamed into the
// directories of the PEM files, so that they rotate without a restart.
func (f *Fleet) BootstrapFiles(b resources.BootstrapConfig, dir string) (map[string][]byte, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	if t := f.Fleet.TLS; t.ServesRequests() && dir != filepath.Clean(t.EnvoyDir) {
		return nil, fmt.Errorf("bootstrap: Envoys of this fleet read their certificate through files in %s: write them there, and not to %s, or set tls.envoy_dir", t.EnvoyDir, dir)
	}
	files := make(map[string][]byte)
	files[BootstrapFile], err = f.bootstrap(b, func(c *tlsv3.CommonTlsContext, own *tlsv3.TlsCertificate, peers *tlsv3.CertificateValidationContext) error {
		cert, key, ca := own.CertificateChain.GetFilename(), own.PrivateKey.GetFilename(), peers.TrustedCa.GetFilename()
		if filepath.Dir(cert) == filepath.Dir(key) { // otherwise Envoy watches both files itself
			own.WatchedDirectory = &corev3.WatchedDirectory{Path: filepath.Dir(cert)}
		}
		peers.WatchedDirectory = &corev3.WatchedDirectory{Path: filepath.Dir(ca)}
		var bad1, bad2 error
		files[resources.CertificateFile], bad1 = secretFile(&tlsv3.Secret{Name: resources.CertificateSecret, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: own}})
		// The file says who issues certificates, and each user of it whose it accepts.
		who := &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: peers.MatchTypedSubjectAltNames}
		peers.MatchTypedSubjectAltNames = nil
		files[resources.AuthorityFile], bad2 = secretFile(&tlsv3.Secret{Name: resources.AuthoritySecret, Type: &tlsv3.Secret_ValidationContext{ValidationContext: peers}})
		c.TlsCertificateSdsSecretConfigs = []*tlsv3.SdsSecretConfig{resources.SecretFromFile(resources.CertificateSecret, filepath.Join(dir, resources.CertificateFile))}
		c.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
			DefaultValidationContext:         who,
			ValidationContextSdsSecretConfig: resources.SecretFromFile(resources.AuthoritySecret, filepath.Join(dir, resources.AuthorityFile)),
		}}
		return errors.Join(bad1, bad2)
	})
	return files, err
}

// secretFile renders a secret as the SDS response that Envoy reads from a file.
func secretFile(s *tlsv3.Secret) ([]byte, error) {
	typed, err := anypb.New(s)
	if err != nil {
		return nil, err
	}
	return resources.FormatJSON(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{typed}})
}

// placeCertificates puts Envoy's certificate and the validation of its peers into
// a TLS context.
type placeCertificates func(c *tlsv3.CommonTlsContext, own *tlsv3.TlsCertificate, peers *tlsv3.CertificateValidationContext) error

func (f *Fleet) bootstrap(b resources.BootstrapConfig, put placeCertificates) ([]byte, error) {
	if f.Proxy.TLS.Cert != "" && !resources.MatchGroup(f.Proxy.Nodes, b.NodeID) {
		return nil, fmt.Errorf("bootstrap: node id %q is not in proxy.nodes of the fleet file, so the control plane would not send it the certificate of proxy.tls: add it there, or use another --node-id", b.NodeID)
	}
	if b.ControlPlane == "" {
		planes := f.OwnControlPlanes()
		b.ControlPlane, b.OtherControlPlanes = planes[0], planes[1:]
	}
	plain, err := resources.Bootstrap(b)
	if err != nil || f.Fleet.TLS.Cert == "" {
		return plain, err
	}
	var boot bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(plain, &boot); err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	hosts, err := splitHosts(append([]string{b.ControlPlane}, b.OtherControlPlanes...))
	if err != nil {
		return nil, fmt.Errorf("bootstrap: control plane: %w", err)
	}
	socket, err := upstreamTLS(f.TLS(identity.Proxy, b.NodeID), hosts, put)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: tls: %w", err)
	}
	for _, c := range boot.StaticResources.Clusters {
		if c.Name == resources.XDSCluster {
			c.TransportSocket = socket
		}
	}
	return resources.FormatJSON(&boot)
}

// splitHosts returns the hosts of addresses.
func splitHosts(addresses []string) ([]string, error) {
	hosts := make([]string, len(addresses))
	for i, a := range addresses {
		var err error
		if hosts[i], _, err = net.SplitHostPort(a); err != nil {
			return nil, err
		}
	}
	return hosts, nil
}

// upstreamTLS returns Envoy's side of mutual TLS with the control planes at hosts.
func upstreamTLS(files config.TLS, hosts []string, put placeCertificates) (*corev3.TransportSocket, error) {
	var paths [3]string
	for i, path := range [...]string{files.Cert, files.Key, files.CA} {
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		paths[i] = abs
	}
	common := &tlsv3.CommonTlsContext{
		// Without a maximum, Envoy as a client stays at TLS 1.2.
		TlsParams:     &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
		AlpnProtocols: []string{"h2"},
	}
	own := &tlsv3.TlsCertificate{CertificateChain: dataSource(paths[0]), PrivateKey: dataSource(paths[1])}
	peers := &tlsv3.CertificateValidationContext{TrustedCa: dataSource(paths[2])}
	for _, host := range hosts {
		m := controlPlaneMatcher(files, host)
		if !slices.ContainsFunc(peers.MatchTypedSubjectAltNames, func(o *tlsv3.SubjectAltNameMatcher) bool { return proto.Equal(o, m) }) {
			peers.MatchTypedSubjectAltNames = append(peers.MatchTypedSubjectAltNames, m)
		}
	}
	if err := put(common, own, peers); err != nil {
		return nil, err
	}
	context := &tlsv3.UpstreamTlsContext{CommonTlsContext: common}
	if net.ParseIP(hosts[0]) == nil {
		context.Sni = hosts[0]
	}
	return transportSocket(context)
}

// controlPlaneMatcher returns what the certificate of a control plane must match.
func controlPlaneMatcher(files config.TLS, host string) *tlsv3.SubjectAltNameMatcher {
	exact := &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: host}}
	switch {
	case files.TrustDomain != "":
		return resources.IdentityMatcher(files.TrustDomain, identity.Control)
	case net.ParseIP(host) != nil:
		return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_IP_ADDRESS, Matcher: exact}
	}
	return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_DNS, Matcher: exact}
}

func dataSource(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}

func transportSocket(m proto.Message) (*corev3.TransportSocket, error) {
	typed, err := anypb.New(m)
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: typed}}, nil
}
