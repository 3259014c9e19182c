package resources_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// edgeFleet returns fleet with TLS for its clients.
func edgeFleet() resources.View {
	v := fleet()
	v.Settings.EdgeTLS = true
	v.Edge = &resources.Certificate{Chain: []byte("the chain"), Key: []byte("the key")}
	return v
}

func TestEdge(t *testing.T) {
	s := build(t, edgeFleet())
	if err := prove(t, s); err != nil {
		t.Fatal(err)
	}
	r := s.Get(resources.SecretType, resources.EdgeSecret)
	if cert := message(t, r).(*tlsv3.Secret).GetTlsCertificate(); !r.Unlisted ||
		string(cert.GetCertificateChain().GetInlineBytes()) != "the chain" || string(cert.GetPrivateKey().GetInlineBytes()) != "the key" {
		t.Errorf("unlisted %v, %v", r.Unlisted, cert)
	}
	// A new certificate changes no other resource.
	next := edgeFleet()
	next.Edge = &resources.Certificate{Chain: []byte("new"), Key: []byte("key")}
	n := build(t, next)
	for _, typ := range n.Types() {
		if changed := resources.ChangedNames(s, n, typ); (len(changed) > 0) != (typ == resources.SecretType) {
			t.Errorf("%s: %v have changed", typ, changed)
		}
	}
	if edgeFleet().Edge.Equal(next.Edge) || !next.Edge.Equal(next.Edge) || next.Edge.Equal(nil) {
		t.Error("certificates are compared wrongly")
	}
	for name, v := range map[string]func(*resources.View){
		"no certificate": func(v *resources.View) { v.Edge = nil },
		"no key":         func(v *resources.View) { v.Edge.Key = nil },
		"no chain":       func(v *resources.View) { v.Edge.Chain = nil },
		"not asked for":  func(v *resources.View) { v.Settings.EdgeTLS = false },
	} {
		bad := edgeFleet()
		v(&bad)
		if _, err := resources.Build(bad); err == nil || !strings.Contains(err.Error(), "edge TLS") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestEdgeIsNotPrinted checks that no way of printing a view prints its key.
func TestEdgeIsNotPrinted(t *testing.T) {
	v := edgeFleet()
	var text bytes.Buffer
	fmt.Fprintf(&text, "%v %+v %#v %s %q", v, v, v.Edge, v.Edge, v.Edge)
	slog.New(slog.NewJSONHandler(&text, nil)).Info("x", "view", v, "edge", v.Edge)
	slog.New(slog.NewTextHandler(&text, nil)).Info("x", "view", v, "edge", v.Edge)
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	text.Write(raw)
	for _, secret := range []string{"the key", "the chain", fmt.Sprint([]byte("the key")), fmt.Sprintf("%x", "the key"), "dGhlIGtleQ"} {
		if strings.Contains(text.String(), secret) {
			t.Errorf("printed as %q:\n%s", secret, text.String())
		}
	}
}

func TestProveEdge(t *testing.T) {
	tls := func(f func(*tlsv3.DownstreamTlsContext)) func(t *testing.T, s resources.Set) resources.Set {
		return func(t *testing.T, s resources.Set) resources.Set {
			return edit(t, s, resources.ListenerType, resources.ListenerName, func(l *listenerv3.Listener) proto.Message {
				socket := l.FilterChains[0].TransportSocket.GetTypedConfig()
				c := new(tlsv3.DownstreamTlsContext)
				if err := socket.UnmarshalTo(c); err != nil {
					t.Fatal(err)
				}
				f(c)
				if err := socket.MarshalFrom(c); err != nil {
					t.Fatal(err)
				}
				return l
			})
		}
	}
	for name, change := range map[string]func(t *testing.T, s resources.Set) resources.Set{
		"certificate in the listener": tls(func(c *tlsv3.DownstreamTlsContext) {
			c.CommonTlsContext.TlsCertificateSdsSecretConfigs, c.CommonTlsContext.TlsCertificates = nil, []*tlsv3.TlsCertificate{{}}
		}),
		"another secret": tls(func(c *tlsv3.DownstreamTlsContext) { c.CommonTlsContext.TlsCertificateSdsSecretConfigs[0].Name = "x" }),
		"no secret": func(t *testing.T, s resources.Set) resources.Set {
			return s.WithTypes(resources.Set{}, resources.SecretType)
		},
		"secret without a key": func(t *testing.T, s resources.Set) resources.Set {
			return edit(t, s, resources.SecretType, resources.EdgeSecret, func(m *tlsv3.Secret) proto.Message {
				m.GetTlsCertificate().PrivateKey = nil
				return m
			})
		},
		"secret for everybody": func(t *testing.T, s resources.Set) resources.Set {
			listed := *s.Get(resources.SecretType, resources.EdgeSecret)
			listed.Unlisted = false
			only, err := resources.NewSet(&listed)
			if err != nil {
				t.Fatal(err)
			}
			return s.WithTypes(only, resources.SecretType)
		},
	} {
		err := prove(t, change(t, build(t, edgeFleet())))
		if err == nil || !strings.Contains(err.Error(), "TLS") || strings.Contains(err.Error(), "the key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
