package resources

import (
	"bytes"
	"errors"
	"log/slog"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// EdgeSecret is the SDS resource of the certificate that proxies present to clients. It
// is sent only to clients that request it by name.
const EdgeSecret = "cascade/edge"

// Certificate is a certificate chain and its private key, PEM. Neither appears in the
// output when a view is printed.
type Certificate struct{ Chain, Key []byte }

const redacted = "certificate and key (not shown)"

// String hides the contents.
func (*Certificate) String() string { return redacted }

// GoString hides the contents.
func (*Certificate) GoString() string { return redacted }

// LogValue hides the contents.
func (*Certificate) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText hides the contents in JSON and YAML.
func (*Certificate) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Equal reports whether both have the same bytes; nil equals nil.
func (c *Certificate) Equal(o *Certificate) bool {
	if c == nil || o == nil {
		return c == o
	}
	return bytes.Equal(c.Chain, o.Chain) && bytes.Equal(c.Key, o.Key)
}

// edgeSocket returns the TLS configuration towards clients. The certificate comes by
// SDS, so that renewing it does not edit the listener.
func edgeSocket() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: Wrap(&tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsParams:     &tlsv3.TlsParameters{TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2},
				AlpnProtocols: []string{"h2", "http/1.1"},
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{
					Name: EdgeSecret, SdsConfig: ads(),
				}},
			},
		})},
	}
}

func edgeSecret(c *Certificate) *tlsv3.Secret {
	inline := func(pem []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: pem}}
	}
	return &tlsv3.Secret{Name: EdgeSecret, Type: &tlsv3.Secret_TlsCertificate{
		TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(c.Chain), PrivateKey: inline(c.Key)},
	}}
}

// validateEdge checks that there is a certificate exactly if EdgeTLS is on.
func (v View) validateEdge() error {
	switch {
	case v.Settings.EdgeTLS && (v.Edge == nil || len(v.Edge.Chain) == 0 || len(v.Edge.Key) == 0):
		return errors.New("edge TLS: certificate or key is missing")
	case !v.Settings.EdgeTLS && v.Edge != nil:
		return errors.New("edge TLS is off, but the view has a certificate")
	}
	return nil
}

// proveEdgeTLS checks that the certificates that a listener waits for exist.
func proveEdgeTLS(s Set, l *listenerv3.Listener) error {
	for _, chain := range l.FilterChains {
		packed := chain.GetTransportSocket().GetTypedConfig()
		if packed == nil {
			continue
		}
		tls := new(tlsv3.DownstreamTlsContext)
		if err := packed.UnmarshalTo(tls); err != nil {
			return err
		}
		sds := tls.GetCommonTlsContext().GetTlsCertificateSdsSecretConfigs()
		if len(sds) != 1 || sds[0].GetSdsConfig().GetAds() == nil {
			return errors.New("TLS: exactly one certificate must come by SDS over ADS; renewing any other edits the listener")
		}
		secret := new(tlsv3.Secret)
		r := s.Get(SecretType, sds[0].Name)
		if r == nil {
			return errors.New("TLS: the secret does not exist, so the listener would refuse every client")
		}
		if err := r.Decode(secret); err != nil {
			return errors.New("TLS: cannot decode the secret") // the error might quote it
		}
		cert := secret.GetTlsCertificate()
		if len(cert.GetCertificateChain().GetInlineBytes()) == 0 || len(cert.GetPrivateKey().GetInlineBytes()) == 0 {
			return errors.New("TLS: the secret has no certificate or no key")
		}
		if !r.Unlisted {
			return errors.New("TLS: the secret must be unlisted, so that it is sent only on request")
		}
	}
	return nil
}
