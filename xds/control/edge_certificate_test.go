package control

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// edgeCertificate returns a self-signed certificate with a serial number.
func edgeCertificate(t *testing.T, serial int64) *resources.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"edge.example"}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &resources.Certificate{
		Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		Key:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}
}

// TestSetEdgeCertificate checks that clients of a real Envoy speak TLS, and
// that the next handshake after a change uses the new certificate.
func TestSetEdgeCertificate(t *testing.T) {
	envoytest.Binary(t)
	r, _ := startUpstream(t, "r0")
	fast := fastRules()
	fast.Speed, fast.Grace = 1, time.Hour // no replica reports here
	c := startControl(t, Config{Rules: fast, Replicas: []policies.Replica{r}, EdgeCertificate: edgeCertificate(t, 1)})
	envoy, _ := startEnvoy(t, c, "envoy")
	url := "https://" + envoy.Listener(resources.ListenerName)
	served := func() (serial int64, err error) {
		seen := func(cs tls.ConnectionState) error { serial = cs.PeerCertificates[0].SerialNumber.Int64(); return nil }
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, VerifyConnection: seen}}
		defer transport.CloseIdleConnections()
		resp, err := (&http.Client{Transport: transport, Timeout: waitTimeout}).Get(url)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			err = errors.New(resp.Status)
		}
		return serial, err
	}
	for _, serial := range []int64{1, 2} {
		if serial == 2 {
			if err := c.SetEdgeCertificate(edgeCertificate(t, serial)); err != nil {
				t.Fatal(err)
			}
		}
		policytest.WaitFor(t, fmt.Sprint("certificate ", serial), func() bool {
			got, err := served()
			return err == nil && got == serial
		})
	}
	if c.SetEdgeCertificate(nil) == nil {
		t.Error("SetEdgeCertificate accepted nil")
	}
	plain := startControl(t, Config{Rules: fast, Replicas: []policies.Replica{r}})
	if plain.SetEdgeCertificate(edgeCertificate(t, 3)) == nil {
		t.Error("SetEdgeCertificate accepted a certificate for a plain-text listener")
	}
}
