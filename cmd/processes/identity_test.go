package processes

import (
	"crypto/tls"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/config"
	"github.com/cascadeinfer/cascade/cmd/mtls"
	"github.com/cascadeinfer/cascade/cmd/mtls/devca"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// TestMovesWithIdentities runs a fleet in which every part has a certificate of
// its own, issued by "cascade tls init" and without a host name in it: requests
// move by TCP, and a replica that comes with its own certificate for another
// one's sake gets nothing.
func TestMovesWithIdentities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command(t, "tls", "init", "--out", dir, "--trust-domain", "fleet.test", "--control", "control",
		"--proxy", "edge", "--migrator", "r0", "--migrator", "r1", "--migrator", "r2")
	files := config.TLS{
		Cert: filepath.Join(dir, "{role}", "{name}", devca.Cert), Key: filepath.Join(dir, "{role}", "{name}", devca.Key),
		CA: filepath.Join(dir, devca.AuthorityCert), TrustDomain: "fleet.test",
	}
	f := newFleet(t, setup{replicas: 3, edit: func(c *config.Fleet) {
		c.TLS = files
		for i := range c.Replicas {
			c.Replicas[i].Node = "n" + strconv.Itoa(i)
		}
	}})
	moves(t, f, "tcp")
	own := files.For(identity.Migrator, "r2")
	keys, err := mtls.New(mtls.Config{Cert: own.Cert, Key: own.Key, CA: own.CA, Self: files.Want(identity.Migrator, "r2")})
	if err != nil {
		t.Fatal(err)
	}
	r := f.replicas[0]
	tunnels := 0
	for _, address := range listening(t, r.migrator.cmd.Process.Pid) {
		if address == r.Address || address == r.Admin || address == r.Peer {
			continue
		}
		tunnels++
		if err := visit(address, keys.ToMigrator("r0", address), make([]byte, transport.TicketSize)); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("r2 as r1 where blocks are pulled: %v", err)
		}
		var wrong *tls.CertificateVerificationError
		if err := visit(address, keys.ToMigrator("r1", address), nil); err == nil || errors.As(err, &wrong) || !strings.Contains(err.Error(), "migrator/r1 is wanted") {
			t.Errorf("r0 is taken for r1: %v", err)
		}
	}
	if tunnels != 1 {
		t.Errorf("the migrator listens for %d transports over TCP, want 1", tunnels)
	}
	peers, scheme := keys.Peers(func(string) string { return "r0" })
	client := &http.Client{Transport: peers}
	defer client.CloseIdleConnections()
	for front, want := range map[string]int{"r1": http.StatusForbidden, "r2": http.StatusOK} {
		req, err := http.NewRequest(http.MethodPost, scheme+"://"+r.Peer+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":2}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Cascade-Forward", front)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("r2 as the front %s: %s, want %d", front, resp.Status, want)
		}
	}
}
