package wiring

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestExampleStartsControlPlane: the printed example is a whole fleet.
func TestExampleStartsControlPlane(t *testing.T) {
	f, err := config.Read(strings.NewReader(config.Example))
	testkit.NoError(t, err)
	dir := t.TempDir()
	w, err := Resolve(f, dir)
	testkit.NoError(t, err)
	c, err := w.Control(slog.New(slog.DiscardHandler))
	testkit.NoError(t, err)
	if len(c.Models) != 1 || len(c.Replicas) != 4 || c.Store == nil {
		t.Errorf("%+v", c)
	}
	if info, err := os.Stat(filepath.Join(dir, "state")); err != nil || !info.IsDir() {
		t.Errorf("the state directory: %v", err)
	}
}

// TestBootstrapUnderTLS: Envoy wants the certificate of whom it dials.
func TestBootstrapUnderTLS(t *testing.T) {
	f := load(t, "tls: {cert: a.pem, key: b.pem, ca: c.pem, plaintext: [requests]}\n")
	out, err := f.Bootstrap(resources.BootstrapConfig{NodeID: "edge"})
	testkit.NoError(t, err)
	for _, want := range []string{`"san_type": "IP_ADDRESS"`, `"exact": "127.0.0.1"`, filepath.Join(f.Dir, "c.pem"), `"TLSv1_3"`, `"port_value": 18000`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if _, err := f.Bootstrap(resources.BootstrapConfig{NodeID: "edge", ControlPlane: "nonsense"}); err == nil {
		t.Error("a control plane without a port is taken")
	}
}

// TestBodyLimit checks that front ends, proxies, the length service and Envoys of other owners get proxy.body_limit.
func TestBodyLimit(t *testing.T) {
	f := load(t, "proxy: {body_limit: 3}\n")
	c, err := f.Control(slog.New(slog.DiscardHandler))
	testkit.NoError(t, err)
	theirs, err := f.Attach("edge", nil)
	testkit.NoError(t, err)
	front := f.Frontend(f.Replicas[0], nil)
	if want := int64(3 << 20); front.MaxBody != want || c.Settings.BodyLimit != want || theirs.BodyLimit != want {
		t.Errorf("the limits are %d, %d and %d, want %d", front.MaxBody, c.Settings.BodyLimit, theirs.BodyLimit, want)
	}
}

// TestOrigins checks that the control plane publishes proxy.origins.
func TestOrigins(t *testing.T) {
	f := load(t, "proxy: {origins: [\"https://app.example\"]}\n")
	c, err := f.Control(slog.New(slog.DiscardHandler))
	testkit.NoError(t, err)
	if got := c.Settings.Origins; len(got) != 1 || got[0] != "https://app.example" {
		t.Errorf("the origins are %q", got)
	}
}
