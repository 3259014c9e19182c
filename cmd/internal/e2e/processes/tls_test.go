package processes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/device/fake"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/xds/control"
)

// loopbackIP is the address of every component of these fleets.
var loopbackIP = net.IPv4(127, 0, 0, 1)

// authority issues the certificates of one fleet.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t}
	var der []byte
	der, a.key = a.sign(&x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// sign creates a key and signs a certificate for it; the first one signs itself.
func (a *authority) sign(c *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.Subject, c.NotAfter = pkix.Name{CommonName: "fleet"}, time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

// issue returns a certificate and its key, as PEM, for all components on loopback.
func (a *authority) issue() (cert, key []byte) {
	a.t.Helper()
	der, secret := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{loopbackIP},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	raw, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// client returns the TLS configuration of a client of the fleet. The client presents a certificate
// of the authority of, or none if that is nil.
func (a *authority) client(of *authority) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(of.cert)
	c := &tls.Config{RootCAs: roots, ServerName: loopbackIP.String()}
	if a != nil {
		pair, err := tls.X509KeyPair(a.issue())
		if err != nil {
			a.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// TestMovesUnderTLS migrates requests between migrators with mutual TLS: by shared memory and, if
// the replicas are on different nodes, by TCP, or by RDMA if they have devices for it. A client
// without the fleet's certificate, or without a ticket, gets nothing.
func TestMovesUnderTLS(t *testing.T) {
	t.Parallel()
	for want, node := range map[string]string{"shm": "a", "tcp": "", "verbs": ""} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			ca := newAuthority(t)
			cert, key := ca.issue()
			rdma, machines := "", []string(nil)
			if want == "verbs" {
				rdma, machines = fake.Verbs(t), []string{"machines.json"}
			}
			f := newFleet(t, setup{
				replicas: 3,
				rdma:     rdma,
				files:    map[string][]byte{"cert.pem": cert, "key.pem": key, "ca.pem": ca.pem, "machines.json": []byte(withRDMA)},
				edit: func(c *config.Fleet) {
					c.TLS, c.Topology = config.TLS{Cert: "cert.pem", Key: "key.pem", CA: "ca.pem"}, machines
					for i := range c.Replicas {
						if c.Replicas[i].Host = node; node == "" {
							c.Replicas[i].Host = "n" + strconv.Itoa(i)
						}
					}
				},
			})
			drainInTurn(t, f, want)
			if want != "shm" {
				tryAllPorts(t, f, ca)
			}
		})
	}
}

// withRDMA describes hosts with the fake RDMA device, which this host's system does not have.
const withRDMA = `{"machines": [
{"name": "n0", "libraries": [{"name": "libibverbs.so.1"}], "nics": [{"name": "fake0", "port": 1, "rdma": "Ethernet", "up": true, "rate": 50000000000}]},
{"name": "n1", "libraries": [{"name": "libibverbs.so.1"}], "nics": [{"name": "fake0", "port": 1, "rdma": "Ethernet", "up": true, "rate": 50000000000}]},
{"name": "n2", "libraries": [{"name": "libibverbs.so.1"}], "nics": [{"name": "fake0", "port": 1, "rdma": "Ethernet", "up": true, "rate": 50000000000}]}]}`

// drainInTurn drains two replicas in turn, under load, and requires that all live migrations use one
// transport.
func drainInTurn(t *testing.T, f *fleet, want string) {
	t.Helper()
	load := newTraffic(f, newOracle(f), "http://"+f.file.Proxy.Listen, kind{workers: 6, words: []int{40, 400}, output: 400})
	load.waitForRequests(3)
	for _, r := range f.replicas[:2] {
		f.order("drain", r.ID)
		f.awaitStatus(r.ID+" is empty", func(s control.Status) bool { n := find(s, r.ID); return n != nil && n.Residents == 0 })
		f.order("undrain", r.ID)
		r.awaitServing()
	}
	load.stop()
	load.report()
	f.tally()
	moved := 0
	for _, m := range f.migrations() {
		switch {
		case m.State != "done" || m.Method != "live":
		case m.Transport == want:
			moved++
		default:
			t.Errorf("request %s moved over %q", m.Request, m.Transport)
		}
	}
	if moved == 0 {
		t.Errorf("nothing moved over %s", want)
	}
	f.awaitEmpty(f.replicas...)
}

// tryAllPorts connects to every port of a migrator except those for clients and for operators:
// without the fleet's certificate a client receives no byte, and with it but without a ticket it
// receives no blocks.
func tryAllPorts(t *testing.T, f *fleet, ca *authority) {
	r := f.replicas[0]
	transports := 0
	for _, address := range listeningAddresses(t, r.migrator.cmd.Process.Pid) {
		if address == r.Address || address == r.Admin {
			continue
		}
		for who, c := range map[string]*tls.Config{"no certificate": (*authority)(nil).client(ca), "a stranger": newAuthority(t).client(ca)} {
			if err := dialWithTicket(address, c, nil); err == nil {
				t.Errorf("%s listens to %s", address, who)
			}
		}
		if address == r.Peer {
			continue
		}
		transports++
		if err := dialWithTicket(address, ca.client(ca), make([]byte, transport.TicketSize)); !errors.Is(err, transport.ErrRefused) {
			t.Errorf("%s to a member of the fleet without a ticket: %v", address, err)
		}
	}
	if transports != 1 {
		t.Errorf("the migrator listens for %d transports over TCP, want 1", transports)
	}
}

// dialWithTicket opens a TLS connection, sends a ticket and waits for an answer.
func dialWithTicket(address string, c *tls.Config, ticket []byte) error {
	conn, err := tls.Dial("tcp", address, c)
	if err != nil {
		return err
	}
	defer conn.Close()
	return presentTicket(conn, ticket, "r1")
}

// listeningAddresses lists the loopback addresses on which a process listens, according to the kernel.
func listeningAddresses(t *testing.T, pid int) []string {
	t.Helper()
	own := map[string]bool{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(links) == 0 {
		t.Skip("no /proc lists the sockets of a process")
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	table, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(table)) {
		// sl, local address, remote address, state (0A: listening), …, inode
		c := strings.Fields(line)
		if len(c) < 10 || c[3] != "0A" || !own[c[9]] {
			continue
		}
		_, hex, _ := strings.Cut(c[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, net.JoinHostPort(loopbackIP.String(), strconv.FormatUint(port, 10)))
	}
	return out
}

// TestPlainTextOffLoopback checks that a migrator whose peers would reach it from other hosts does
// not start without TLS.
func TestPlainTextOffLoopback(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "fleet.yaml")
	text := `models: [{name: m, context: 8192, profile: h200-llama-3.1-8b}]
replicas: [{id: r0, address: "127.0.0.1:9000", peer: "192.0.2.1:9100", engine: "http://127.0.0.1:8000"}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(cascade, "migrator", "-c", file, "--replica", "r0", "--runtime-dir", filepath.Join(dir, "run")).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !strings.Contains(string(out), "is not loopback; set tls") {
		t.Errorf("%v: %s", err, out)
	}
}
