package processes

import (
	"bufio"
	"crypto/tls"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/certs"
	"github.com/cascadeinfer/cascade/cmd/internal/certs/devca"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// identities issues certificates without host names for components, such as "--migrator r0", and returns the tls section
// of their fleet file.
func identities(t *testing.T, components ...string) config.TLS {
	t.Helper()
	dir := t.TempDir()
	command(t, append([]string{"tls", "--out", dir, "--trust-domain", "fleet.test"}, components...)...)
	return config.TLS{
		Cert: filepath.Join(dir, "{role}", "{name}", devca.Cert), Key: filepath.Join(dir, "{role}", "{name}", devca.Key),
		CA: filepath.Join(dir, devca.AuthorityCert), TrustDomain: "fleet.test", EnvoyDir: filepath.Join(dir, "envoy"),
	}
}

// migratorKeys returns the certificate of a migrator.
func migratorKeys(t *testing.T, files config.TLS, name string) *certs.Provider {
	t.Helper()
	own := files.ForComponent(identity.Migrator, name)
	keys, err := certs.New(certs.Config{Cert: own.Cert, Key: own.Key, CA: own.CA, Self: files.ExpectedIdentity(identity.Migrator, name)})
	testkit.NoError(t, err)
	return keys
}

// TestMigrationsUnderTLS migrates requests in a fleet in which every component has a certificate of its own, between hosts:
// by TCP, and by RDMA if they have devices for it. A client without a
// certificate of the fleet, without a ticket, or with another replica's name gets nothing.
func TestMigrationsUnderTLS(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"tcp", "verbs"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			files := identities(t, "--control", "control", "--proxy", "edge", "--migrator", "r0", "--migrator", "r1", "--migrator", "r2")
			rdma, machines := "", []string(nil)
			if transport == "verbs" {
				files.Plaintext = []string{config.PlaintextRDMA} // otherwise KV travels by TCP under TLS
				rdma, machines = fake.Verbs(t), []string{"machines.json"}
			}
			f := newFleet(t, setup{
				replicas: 3,
				rdma:     rdma,
				files:    map[string][]byte{"machines.json": []byte(withRDMA)},
				edit: func(c *config.Fleet) {
					c.TLS, c.Topology = files, machines
					for i := range c.Replicas {
						c.Replicas[i].Host = "n" + strconv.Itoa(i)
					}
				},
			})
			drainInTurn(t, f, transport)
			tryAllPorts(t, f, migratorKeys(t, files, "r2"))
		})
	}
}

// withRDMA describes hosts with the fake RDMA device, which this host's system does not have.
const withRDMA = `{"machines": [
{"name": "n0", "libraries": [{"name": "libibverbs.so.1"}], "nics": [{"name": "fake0", "port": 1, "rdma": "Ethernet", "up": true, "rate": 50000000000}]},
{"name": "n1", "libraries": [{"name": "libibverbs.so.1"}], "nics": [{"name": "fake0", "port": 1, "rdma": "Ethernet", "up": true, "rate": 50000000000}]},
{"name": "n2", "libraries": [{"name": "libibverbs.so.1"}], "nics": [{"name": "fake0", "port": 1, "rdma": "Ethernet", "up": true, "rate": 50000000000}]}]}`

// drainInTurn drains all replicas in turn, under load, and requires that all live migrations use one transport. On a
// busy host the load's requests end before they have migrated, so one stream does not end.
func drainInTurn(t *testing.T, f *fleet, want string) {
	t.Helper()
	load := f.newLoad(6, 400, 300, 2000)
	load.WaitForRequests(3)
	endless := []*harness.Stream{f.Stream(harness.Prompt(100, 300, forever))}
	for _, r := range f.replicas {
		f.Order("drain", r.ID)
		f.awaitDrained(r.ID)
		f.Order("undrain", r.ID)
		r.f.AwaitServing(r.ID)
	}
	load.Stop()
	load.Report()
	f.WaitForGrowth(endless)
	f.RequireTexts(endless)
	harness.Tally(f.T, f.migrations())
	migrated := 0
	for _, m := range f.migrations() {
		switch {
		case m.State != "done" || m.Method != "live":
		case m.Transport == want:
			migrated++
		default:
			t.Errorf("request %s migrated over %q", m.Request, m.Transport)
		}
	}
	if migrated == 0 {
		t.Errorf("no request migrated over %s", want)
	}
	f.awaitEmpty(f.replicas...)
}

// tryAllPorts connects to every port of r0's migrator except those for clients and for operators. Without a certificate
// of the fleet a client receives no byte. With r2's certificate it receives no blocks without a ticket, does not accept
// r0 as another replica, and is not accepted as one.
func tryAllPorts(t *testing.T, f *fleet, keys *certs.Provider) {
	r := f.replicas[0]
	stranger := migratorKeys(t, identities(t, "--migrator", "r2"), "r2").MigratorClientConfig("r0", r.Peer)
	stranger.InsecureSkipVerify, stranger.VerifyConnection = true, nil
	transports := 0
	for _, address := range r.migrator.Listeners() {
		if address == r.Address || address == r.Admin {
			continue
		}
		for name, c := range map[string]*tls.Config{"no certificate": {InsecureSkipVerify: true}, "a certificate of a stranger": stranger} {
			if err := dialWithTicket(address, c, nil); err == nil {
				t.Errorf("%s answers a client with %s", address, name)
			}
		}
		if address == r.Peer {
			continue
		}
		transports++
		if err := dialWithTicket(address, keys.MigratorClientConfig("r0", address), make([]byte, transport.TicketSize)); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("%s to r2, as r1 and without a ticket: %v", address, err)
		}
		var wrong *tls.CertificateVerificationError
		if err := dialWithTicket(address, keys.MigratorClientConfig("r1", address), nil); err == nil || errors.As(err, &wrong) || !strings.Contains(err.Error(), "migrator/r1 is wanted") {
			t.Errorf("r0 is accepted as r1: %v", err)
		}
	}
	if transports != 1 {
		t.Errorf("the migrator listens for %d transports over TCP, want 1", transports)
	}
	peers, scheme := keys.PeerTransport(func(string) string { return "r0" })
	client := &http.Client{Transport: peers}
	defer client.CloseIdleConnections()
	for front, want := range map[string]int{"r1": http.StatusForbidden, "r2": http.StatusOK} {
		req, err := http.NewRequest(http.MethodPost, scheme+"://"+r.Peer+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":2}`))
		testkit.NoError(t, err)
		req.Header.Set(frontend.ForwardHeader, front)
		resp, err := client.Do(req)
		testkit.NoError(t, err)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("r2 as the front end %s: %s, want %d", front, resp.Status, want)
		}
	}
}

// dialWithTicket opens a TLS connection as r1, presents a ticket to the source, and returns nil if the source accepts it.
func dialWithTicket(address string, c *tls.Config, ticket []byte) error {
	conn, err := tls.Dial("tcp", address, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	h := lease.Hello{Receiver: "r1"}
	copy(h.Ticket[:], ticket)
	hello, err := h.Append(nil)
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	_, _, err = lease.ReadWelcome(bufio.NewReaderSize(conn, lease.MaxWelcome))
	return err
}
