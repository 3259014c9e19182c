package resources_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/cascadeinfer/cascade/internal/testkit"
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
	testkit.NoError(t, prove(t, s))
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
	for _, half := range []*resources.Certificate{{Chain: []byte("new")}, {Key: []byte("key")}} {
		next.Edge = half
		if _, err := resources.Build(next); err == nil || !strings.Contains(err.Error(), "edge TLS") {
			t.Errorf("half a certificate: %v", err)
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
	raw := testkit.Must(json.Marshal(v))
	text.Write(raw)
	for _, secret := range []string{"the key", "the chain", fmt.Sprint([]byte("the key")), fmt.Sprintf("%x", "the key"), "dGhlIGtleQ"} {
		if strings.Contains(text.String(), secret) {
			t.Errorf("printed as %q:\n%s", secret, text.String())
		}
	}
}
