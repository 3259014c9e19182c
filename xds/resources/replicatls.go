package resources

import (
	"path"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// ReplicaTLS is the mutual TLS between proxies and replicas. The zero value is plain text.
type ReplicaTLS struct {
	// Dir is the directory with CertificateFile and AuthorityFile on the host of each Envoy. The files of each Envoy
	// have its own certificate, which may rotate, while the clusters are the same for all.
	Dir string
	// TrustDomain of the replicas' certificates; "" accepts every certificate of the authorities.
	TrustDomain string
}

// The SDS files of an Envoy, and the names of the secrets in them.
const (
	CertificateFile   = "sds-certificate.json"
	AuthorityFile     = "sds-authority.json"
	CertificateSecret = "cascade/own-certificate"
	AuthoritySecret   = "cascade/authority"
)

// SecretFromFile returns the reference to a secret in a file. Envoy reads the file again when it is replaced by a
// rename.
func SecretFromFile(name, path string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: path}},
	}}
}

// IdentityMatcher matches the certificates of all components with a role.
func IdentityMatcher(trustDomain string, role identity.Role) *tlsv3.SubjectAltNameMatcher {
	prefix := "spiffe://" + trustDomain + "/" + string(role) + "/"
	return &tlsv3.SubjectAltNameMatcher{
		SanType: tlsv3.SubjectAltNameMatcher_URI,
		Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: prefix}},
	}
}

// socket returns the transport socket of connections to replicas; nil for plain text.
func (r ReplicaTLS) socket() *corev3.TransportSocket {
	if r == (ReplicaTLS{}) {
		return nil
	}
	want := new(tlsv3.CertificateValidationContext)
	if r.TrustDomain != "" {
		want.MatchTypedSubjectAltNames = []*tlsv3.SubjectAltNameMatcher{IdentityMatcher(r.TrustDomain, identity.Migrator)}
	}
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: Wrap(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			// Without a maximum, Envoy as a client stays at TLS 1.2.
			TlsParams:                      &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3, TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3},
			AlpnProtocols:                  []string{"h2"},
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{SecretFromFile(CertificateSecret, path.Join(r.Dir, CertificateFile))},
			ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         want,
				ValidationContextSdsSecretConfig: SecretFromFile(AuthoritySecret, path.Join(r.Dir, AuthorityFile)),
			}},
		}})},
	}
}
