package publish_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// edgeCertificate returns a new certificate.
func edgeCertificate(t *testing.T) *resources.Certificate {
	t.Helper()
	cert := issuer.New(t).Certificate(t, "spiffe://fleet.test/edge") // Envoy refuses one without a name
	return &resources.Certificate{
		Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		Key:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: testkit.Must(x509.MarshalPKCS8PrivateKey(cert.PrivateKey))}),
	}
}

// newTLSClient returns a client that accepts one certificate and speaks one
// major version of HTTP.
func newTLSClient(t *testing.T, address string, cert *resources.Certificate, version int) *client {
	t.Helper()
	block, _ := pem.Decode(cert.Chain)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == 1)
	protocols.SetHTTP2(version == 2)
	accept := func(raw [][]byte, _ [][]*x509.Certificate) error {
		if !bytes.Equal(raw[0], block.Bytes) {
			return errors.New("another certificate")
		}
		return nil
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: accept}, Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{"https://" + address + "/v1/completions", &http.Client{Transport: transport, Timeout: 20 * time.Second}}
}

// TestEnvoyEdge has a real Envoy serve HTTPS with a certificate from SDS and
// apply a new one without an edit of its listener or a cut connection. It
// refuses an unusable certificate, which changes nothing.
func TestEnvoyEdge(t *testing.T) {
	backends := startBackends(t, "a", "b")
	p, _ := startServices(t, "")
	show := func(epoch policies.Epoch, cert *resources.Certificate) {
		v := backendView(backends, epoch, []policies.Tokens{1000}, "a", "b")
		v.Settings.EdgeTLS, v.Edge = true, cert
		p.publisher.Submit(v)
	}
	first, second := edgeCertificate(t), edgeCertificate(t)
	show(1, first)
	envoy := startEnvoy(t, "edge", p.address)
	address := envoy.Listener(resources.ListenerName)
	p.waitForCurrent(t, 1, 1)
	old := newTLSClient(t, address, first, 2)
	for _, c := range []*client{old, newTLSClient(t, address, first, 1)} {
		if replica, stage, err := c.post(3999); err != nil || replica != "a" || stage != "s0" {
			t.Errorf("over TLS: %q, %q, %v", replica, stage, err)
		}
	}
	if replica, _, err := (&client{"http://" + address + "/", &http.Client{Timeout: 5 * time.Second}}).post(1); err == nil {
		t.Errorf("served in plain text by %q", replica)
	}
	edits := envoy.Stats(`listener_manager\.(listener_modified|listener_in_place_updated|listener_added)$`)
	uses := func(cert *resources.Certificate, version int) func() bool {
		return func() bool {
			_, _, err := newTLSClient(t, address, cert, version).post(10)
			return err == nil
		}
	}
	show(1, second)
	testkit.WaitFor(t, "the new certificate to be used", uses(second, 1))
	if _, _, err := newTLSClient(t, address, first, 1).post(10); err == nil {
		t.Error("old certificate still used")
	}
	if replica, _, err := old.post(4000); err != nil || replica != "b" {
		t.Errorf("on the old connection: %q, %v", replica, err)
	}
	// The key of another certificate passes the proof, and Envoy refuses it.
	bad := &resources.Certificate{Chain: first.Chain, Key: second.Key}
	show(1, bad)
	testkit.WaitFor(t, "the refusal", func() (refused bool) {
		for _, n := range p.publisher.Status().Nodes {
			refused = refused || n.NACKs > 0
			if quoted := fmt.Sprint(n.LastError); strings.Contains(quoted, "PRIVATE") || strings.Contains(quoted, "BEGIN") {
				t.Fatalf("key material in the error text: %s", quoted)
			}
		}
		return refused
	})
	t.Logf("refused: %s", p.publisher.Status().Nodes[0].LastError)
	if _, _, err := newTLSClient(t, address, second, 1).post(10); err != nil {
		t.Errorf("after the refusal: %v", err)
	}
	third := edgeCertificate(t)
	show(2, third)
	testkit.WaitFor(t, "the third certificate to be used", uses(third, 2))
	if now := envoy.Stats(`listener_manager\.(listener_modified|listener_in_place_updated|listener_added)$`); fmt.Sprint(now) != fmt.Sprint(edits) {
		t.Errorf("listener edited: %v, before: %v", now, edits)
	}
}
