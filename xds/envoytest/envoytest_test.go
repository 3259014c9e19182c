package envoytest

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFind(t *testing.T) {
	venv := t.TempDir()
	var missing *NotFoundError
	if _, err := find(venv); !errors.As(err, &missing) || !strings.Contains(err.Error(), venv) || !strings.Contains(err.Error(), "no Envoy binary at") {
		t.Errorf("in an empty folder: %v", err)
	}
	want := filepath.Join(venv, "lib", "python3.13", "site-packages", "envoy", "_bin", "envoy")
	testkit.NoError(t, os.MkdirAll(filepath.Dir(want), 0o700))
	testkit.NoError(t, os.WriteFile(want, nil, 0o600))
	if _, err := find(venv); !errors.As(err, &missing) {
		t.Errorf("with a file that cannot run: %v", err)
	}
	testkit.NoError(t, os.Chmod(want, 0o700))
	if got, err := find(venv); got != want || err != nil {
		t.Errorf("found %q, %v, want %q", got, err, want)
	}
}

// recorder is a testing.TB that remembers how a test would have ended.
type recorder struct {
	testing.TB
	ended string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(string, ...any) { r.end("failed") }

func (r *recorder) Skipf(string, ...any) { r.end("skipped") }

func (r *recorder) end(how string) {
	r.ended = how
	panic(r) // as FailNow would, leave the function
}

func (r *recorder) binary() (how string) {
	defer func() {
		if recover() != nil {
			how = r.ended
		}
	}()
	Binary(r)
	return "found"
}

func TestBinary(t *testing.T) {
	// A folder of its own as the repository, so that no installed Envoy counts.
	t.Chdir(t.TempDir())
	testkit.NoError(t, os.WriteFile("go.mod", nil, 0o600))
	for _, c := range []struct{ envoy, ci, want string }{
		{"", "", "skipped"}, {"", "true", "failed"}, {"/does/not/exist", "", "failed"}, {os.Args[0], "true", "found"},
	} {
		t.Setenv("ENVOY", c.envoy)
		t.Setenv("CI", c.ci)
		if got := (&recorder{TB: t}).binary(); got != c.want {
			t.Errorf("ENVOY=%q CI=%q: %s, want %s", c.envoy, c.ci, got, c.want)
		}
	}
}

const hello = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  listeners:
  - name: "hello: world"
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: hello
          route_config: {virtual_hosts: [{name: v, domains: ["*"], routes: [{match: {prefix: "/"}, direct_response: {status: 200, body: {inline_string: hello}}}]}]}
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
`

func TestProcess(t *testing.T) {
	p := Start(t, Config{Bootstrap: hello, Concurrency: 1})
	response, err := http.Get("http://" + p.Listener("hello: world"))
	testkit.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if string(body) != "hello" || err != nil {
		t.Errorf("got %q, %v", body, err)
	}
	if got := p.Stats(`^http\.hello\.downstream_rq_total$`); len(got) != 1 || got["http.hello.downstream_rq_total"] != 1 {
		t.Errorf("stats %v, want one request", got)
	}
	if got := string(p.ConfigDump()); !strings.Contains(got, "hello: world") {
		t.Errorf("the listener is not in the config dump %.500s", got)
	}
	if got := p.Clusters(); got != "" {
		t.Errorf("clusters %q, want none", got)
	}
	p.Stop()
	p.Stop()
	if err := syscall.Kill(p.PID(), 0); err == nil {
		t.Error("Envoy still runs")
	}
	if got := p.Log(); strings.Contains(got, "[critical]") {
		t.Errorf("log %s", got)
	}
}

func TestValidate(t *testing.T) {
	binary := Binary(t)
	Validate(t, hello)
	for name, c := range map[string]struct{ old, new, want string }{
		"unknown field": {"admin:", "nope: {}\nadmin:", "nope"},
		"deprecated":    {"static_resources:\n", "static_resources:\n  clusters: [{name: c, http2_protocol_options: {}}]\n", "deprecated"},
	} {
		if output, err := validate(binary, t.TempDir(), strings.Replace(hello, c.old, c.new, 1)); err == nil || !strings.Contains(output+err.Error(), c.want) {
			t.Errorf("%s: %v\n%s", name, err, output)
		}
	}
}
