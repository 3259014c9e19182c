// Package kubetest has Kubernetes APIs for tests: Start runs a real kube-apiserver on a real
// etcd, Simulate the little of it that Cascade's store uses, in memory.
package kubetest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/etcdtest"
)

// Binary returns the path of kube-apiserver: $KUBE_APISERVER, that of "make kube-apiserver", or
// kube-apiserver in PATH. Without one it skips the test, also in continuous integration: to
// build it takes minutes. It fails the test if KUBE_APISERVER is set but is not an executable
// file.
func Binary(t testing.TB) string {
	t.Helper()
	return testkit.Program{
		Variable: "KUBE_APISERVER", Cached: "kube-apiserver/kube-apiserver", Name: "kube-apiserver",
		Missing: testkit.Unavailable{What: "there is no kube-apiserver", Remedy: "run `make kube-apiserver`, or set KUBE_APISERVER to a binary"},
	}.Find(t)
}

// ServerName is a name in the certificate of an API server, for whatever address reaches it.
const ServerName = "kubernetes"

// Server is a running kube-apiserver on an etcd of its own.
type Server struct {
	Address string // host:port, by TLS
	CAFile  string // PEM of the authority of its certificate, for 127.0.0.1
	Token   string // of a user who may do everything
	Etcd    *etcdtest.Cluster

	t               testing.TB
	command         []string
	log             *testkit.Log
	testkit.Process // Kill ends it without a shutdown; its etcd goes on. No pointer: methods bound before Restart reach the new process
}

// readyWithin bounds the start on a loaded machine.
const readyWithin = 3 * time.Minute

// Start runs an API server until the end of the test, and returns when it is ready. If the test
// fails, it logs the end of what the API server has written.
func Start(t testing.TB) *Server { t.Helper(); return StartIn(t, nil) }

// StartIn is Start in a namespace; nil is none. Address is then by the first link of it, and each of the other links
// reaches the API server at its own address and the same port, as ServerName.
func StartIn(t testing.TB, namespace *testkit.Namespace) *Server {
	t.Helper()
	binary, dir := Binary(t), t.TempDir()
	s := &Server{t: t, log: &testkit.Log{}, Token: rand.Text(), CAFile: filepath.Join(dir, "apiserver.crt")}
	s.Etcd = etcdtest.Start(t, etcdtest.Config{Namespace: namespace})
	tokens, key := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "serviceaccounts.pem")
	testkit.NoError(t, os.WriteFile(tokens, []byte(s.Token+`,admin,admin,"system:masters"`+"\n"), 0o600))
	testkit.NoError(t, os.WriteFile(key, newKey(t), 0o600))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	testkit.NoError(t, err)
	testkit.NoError(t, l.Close())
	bind, host := "127.0.0.1", "127.0.0.1"
	if namespace != nil {
		bind, host = "0.0.0.0", namespace.Links[0].Address
	}
	s.Address = net.JoinHostPort(host, port)
	s.command = []string{
		binary, "--etcd-servers=http://" + s.Etcd.Members[0].Endpoint, "--bind-address=" + bind, "--advertise-address=" + host, "--secure-port=" + port,
		"--cert-dir=" + dir, "--token-auth-file=" + tokens, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://kubetest", "--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		"--disable-admission-plugins=ServiceAccount", "--profiling=false",
	}
	if namespace != nil {
		s.command = namespace.Command(s.command...)
	}
	s.launch()
	t.Cleanup(func() {
		s.Kill()
		if text := s.log.String(); t.Failed() && text != "" {
			t.Logf("kube-apiserver at %s:\n%s", s.Address, text[max(0, len(text)-4096):])
		}
	})
	s.WaitReady()
	return s
}

// newKey returns a new private key as PEM.
func newKey(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	testkit.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// WaitReady waits until the API server serves.
func (s *Server) WaitReady() {
	s.t.Helper()
	deadline := time.Now().Add(readyWithin)
	for {
		err := s.ready()
		if err == nil {
			return
		}
		select {
		case <-s.Ended():
			s.t.Fatal("kubetest: kube-apiserver has ended")
		case <-time.After(100 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("kubetest: kube-apiserver is not ready: %v", err)
		}
	}
}

func (s *Server) ready() error {
	_, err := s.do(http.MethodGet, "/readyz", nil)
	return err
}

// Do makes a request as the user who may do everything, with a body in JSON, of PATCH a
// strategic merge patch, and returns the answer. It fails the test if the API server refuses the request.
func (s *Server) Do(method, path string, body []byte) []byte {
	s.t.Helper()
	answer, err := s.do(method, path, body)
	if err != nil {
		s.t.Fatalf("kubetest: %s %s: %v", method, path, err)
	}
	return answer
}

func (s *Server) do(method, path string, body []byte) ([]byte, error) {
	pool := x509.NewCertPool()
	authority, err := os.ReadFile(s.CAFile)
	if err != nil {
		return nil, err
	}
	pool.AppendCertsFromPEM(authority)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: ServerName}}}
	r, err := http.NewRequest(method, "https://"+s.Address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+s.Token)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 16<<20))
	if err == nil && answer.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, err
}

func (s *Server) launch() {
	s.t.Helper()
	cmd := exec.Command(s.command[0], s.command[1:]...)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	s.Process = *testkit.Must(testkit.StartProcess(cmd))
}

// Restart starts the API server after Kill, and waits until it is ready.
func (s *Server) Restart() {
	s.t.Helper()
	s.launch()
	s.WaitReady()
}
