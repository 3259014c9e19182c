package stock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// profile is a cost profile of the tiny model. It is coarse, and the fleets of these tests stay in one stage.
const profile = `{"name": "tiny", "source": "measured roughly on two cores", "unit": "seconds", "d0": 0.003, "d1": 0.0002, "d2": 1e-8, "d3": 0, "d4": 0.00003,
"kappa": 0, "kv_bytes_per_token": 1024, "kv_tokens": 32768, "max_batch": 8, "ranks": 1, "fit_error": {"p50": 0, "p90": 0, "points": 0}}`

// fleet is Cascade in front of engines: a control plane, a migrator per engine, and Envoy.
type fleet struct {
	*harness.Clients
	file      config.Fleet
	engines   []*engine
	control   *harness.Daemon
	migrators []*harness.Daemon
	envoy     *envoytest.Process
}

// newFleet runs Cascade in front of engines until the test ends, and returns once it serves. The engines' replicas are
// r0, r1, …. edit, if not nil, edits the fleet file.
func newFleet(t testing.TB, engines []*engine, edit func(*config.Fleet)) *fleet {
	t.Helper()
	dir, err := os.MkdirTemp("", "vllm") // private, as a runtime directory must be, and its path is short
	testkit.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := testkit.Addresses(t, 3+3*len(engines))
	f := &fleet{engines: engines, file: config.Fleet{
		Models:  []config.Model{{Name: model, Context: context, Profile: "tiny.json"}},
		Control: config.Control{Listen: a[0], Admin: a[1]},
		Proxy:   config.Proxy{Listen: a[2], Nodes: []string{"edge"}},
	}}
	for i, e := range engines {
		b := a[3+3*i:]
		f.file.Replicas = append(f.file.Replicas, config.Replica{ID: fmt.Sprint("r", i), Address: b[0], Peer: b[1], Admin: b[2], Engine: e.URL})
	}
	if edit != nil {
		edit(&f.file)
	}
	f.Clients = &harness.Clients{T: t, DataPlane: "http://" + f.file.Proxy.Listen, Admin: "http://" + f.file.Control.Admin, HTTP: harness.NewHTTP()}
	t.Cleanup(f.HTTP.CloseIdleConnections)
	path := filepath.Join(dir, "fleet.yaml")
	testkit.NoError(t, os.WriteFile(filepath.Join(dir, "tiny.json"), []byte(profile), 0o600))
	testkit.NoError(t, os.WriteFile(path, testkit.Must(yaml.Marshal(f.file)), 0o600))

	f.control = harness.Command{Binary: cascade, Args: []string{"control", "-c", path}}.Start(t)
	f.control.WaitForLog("control plane of")
	for _, r := range f.file.Replicas {
		m := harness.Command{Binary: cascade, Args: []string{"migrator", "-c", path, "--replica", r.ID, "--runtime-dir", dir, "--log", "info"}}.Start(t)
		m.WaitForLog("migrator of " + r.ID + ": .*reports to")
		f.migrators = append(f.migrators, m)
	}
	boot := harness.Command{Binary: cascade, Args: []string{"envoy-bootstrap", "-c", path, "--node-id", "edge", "--admin", "127.0.0.1:0"}}.Output(t)
	f.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: boot})
	for _, r := range f.file.Replicas {
		f.AwaitServing(r.ID)
	}
	f.WaitFor("Envoy serves", func() bool {
		_, err := f.Get(f.DataPlane + "/v1/models")
		return err == nil
	})
	return f
}

// status returns the control plane's status.
func (f *fleet) status() control.Status {
	f.T.Helper()
	s, err := f.Status(f.Admin)
	testkit.NoError(f.T, err)
	return s
}

// command runs an operator's command against the fleet and returns what it prints.
func (f *fleet) command(args ...string) string {
	f.T.Helper()
	return harness.Command{Binary: cascade, Args: append(args, "--control", f.Admin)}.Output(f.T)
}

// migrations returns the migrations that the control plane reports.
func (f *fleet) migrations() []control.Migration {
	f.T.Helper()
	var m control.Migrations
	testkit.NoError(f.T, json.Unmarshal([]byte(f.command("migrations", "--json", "--limit", "512")), &m))
	return m.Migrations
}

// stream sends a request through Envoy and returns the text of its stream, which is complete if err is nil.
func (f *fleet) stream(c completion) (text string, err error) {
	resp, err := f.HTTP.Post(f.DataPlane+c.path(), "application/json", bytes.NewReader(c.body(map[string]any{"stream": true})))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s", resp.Status)
	}
	var e harness.Events
	err = e.Read(resp.Body, nil)
	if text = e.Text.String(); err == nil && (!e.Done || e.Failed != "") {
		err = fmt.Errorf("%w after %d events: %s", harness.ErrCut, e.Tokens, e.Failed)
	}
	return text, err
}

// plain is stream for a request whose answer is not streamed.
func (f *fleet) plain(c completion) (text string, err error) {
	answer, err := tryPost(f.HTTP, f.DataPlane+c.path(), c.body(nil))
	return c.textOf(answer), err
}
