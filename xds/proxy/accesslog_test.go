package proxy

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/client"
)

// TestAccessLog: with an access log on the published listener, each request is one line of
// JSON with the id that its replica sees, whether a replica has answered it or not.
func TestAccessLog(t *testing.T) {
	f := newFleet(t, 2, nil)
	path := filepath.Join(t.TempDir(), "access.log")
	v := f.view
	v.Settings.AccessLog = path
	f.publish(v, nil, func(s *client.Snapshot) bool { return s.Listeners["cascade"].AccessLog == path })
	testkit.WaitFor(t, "the proxy uses the new listener", func() bool { return f.proxy.state.Load().listeners["cascade"].AccessLog == path })
	_, seen := f.see("POST", "/v1/x?y=z", "", bytes.NewReader(prompt("m", 100)))
	f.send("POST", "/status/418", "", bytes.NewReader(prompt("m", 100)))
	f.fronts[0].kill()
	f.fronts[1].kill()
	f.send("POST", "/", "", bytes.NewReader(prompt("m", 100)))
	f.stop() // a line is written after its answer
	text := string(testkit.Must(os.ReadFile(path)))
	var lines []accessRecord
	for line := range strings.Lines(text) {
		var r accessRecord
		testkit.NoError(t, json.Unmarshal([]byte(line), &r))
		lines = append(lines, r)
	}
	if len(lines) != 3 {
		t.Fatalf("%d lines:\n%s", len(lines), text)
	}
	first := lines[0]
	if first.ID == "" || first.ID != seen.Header.Get("X-Request-Id") || first.Status != 200 || first.Method != "POST" || first.Path != "/v1/x?y=z" ||
		first.Cluster != "cascade/m/s0/rr" || first.Attempts != 1 || first.Upstream == "" || first.Model != "m" || first.Tokens != "25" || first.Start == "" {
		t.Errorf("%+v, want id %s", first, seen.Header.Get("X-Request-Id"))
	}
	if lines[1].Status != 418 || lines[2].Status != 503 || lines[2].ID == "" || lines[2].ID == first.ID {
		t.Errorf("%s", text)
	}
}

// TestAccessLogFails: a file that cannot be written is logged once, and fails no request.
func TestAccessLogFails(t *testing.T) {
	var a accessLog
	var log testkit.Log
	path := filepath.Join(t.TempDir(), "missing", "access.log")
	for range 3 {
		a.write(path, accessRecord{}, log.Logger())
	}
	if n := log.Count("access log not written"); n != 1 {
		t.Errorf("%d lines:\n%s", n, &log)
	}
	a.close()
}
