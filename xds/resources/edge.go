package resources

import (
	"bytes"
	"errors"
	"log/slog"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// EdgeSecret is the SDS resource of the certificate that proxies show to
// clients. It is sent to those who ask for it by name.
const EdgeSecret = "cascade/edge"

// Certificate is a certificate chain and its private key, PEM. Its texts show
// neither, wherever a view is printed.
type Certificate struct{ Chain, Key []byte }

const redacted = "certificate and key (not shown)"

// String tells nothing.
func (*Certificate) String() string { return redacted }

// GoString tells nothing.
func (*Certificate) GoString() string { return redacted }

// LogValue tells nothing.
func (*Certificate) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText tells nothing, in JSON and YAML.
func (*Certificate) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Equal reports whether both are the same files; nil is equal to nil.
func (c *Certificate) Equal(o *Certificate) bool {
	if c == nil || o == nil {
		return c == o
	}
	return bytes.Equal(c.Chain, o.Chain) && bytes.Equal(c.Key, o.Key)
}

// edgeSocket is TLS towards clients. The certificate comes by SDS, so that a
// new one is no edit of the listener.
func edgeSocket() *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: wrap(&tlsv3.DownstreamTlsContext{
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

// validateEdge checks that there is a certificate where one is promised.
func (v View) validateEdge() error {
	switch {
	case v.Settings.EdgeTLS && (v.Edge == nil || len(v.Edge.Chain) == 0 || len(v.Edge.Key) == 0):
		return errors.New("edge TLS: there is no certificate, or no key")
	case !v.Settings.EdgeTLS && v.Edge != nil:
		return errors.New("edge TLS is off, and there is a certificate for it")
	}
	return nil
}

// proveEdgeTLS checks that the certificates that a listener waits for are there.
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
			return errors.New("TLS: one certificate must come by SDS, over ADS; any other is an edit of the listener when it ends")
		}
		secret := new(tlsv3.Secret)
		r := s.Get(SecretType, sds[0].Name)
		if r == nil {
			return errors.New("TLS: its certificate does not exist, so it would refuse every client")
		}
		if err := r.Decode(secret); err != nil {
			return errors.New("TLS: its secret cannot be read") // the error might quote it
		}
		cert := secret.GetTlsCertificate()
		if len(cert.GetCertificateChain().GetInlineBytes()) == 0 || len(cert.GetPrivateKey().GetInlineBytes()) == 0 {
			return errors.New("TLS: its secret has no certificate, or no key")
		}
		if !r.Unlisted {
			return errors.New("TLS: its secret is sent to everybody")
		}
	}
	return nil
}
