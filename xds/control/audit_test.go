package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/console"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

// audited returns the records of an audit log, each as its interesting fields.
func audited(t *testing.T, path string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	testkit.NoError(t, err)
	for line := range bytes.Lines(text) {
		var r auditlog.Record
		testkit.NoError(t, json.Unmarshal(line, &r))
		if r.Time.IsZero() || r.Control != "a" {
			t.Errorf("%s: no time, or not by control plane a", line)
		}
		out = append(out, fmt.Sprintf("%s | %s | %s | %s | %s | %s | %v", r.Action, r.Object, r.Outcome, r.Reason, r.Who, r.By, r.From != ""))
	}
	return out
}

// newAudit returns an audit log for a control plane of a test.
func newAudit(t *testing.T) *auditlog.Log {
	t.Helper()
	return testkit.Must(auditlog.New(auditlog.Config{Path: filepath.Join(t.TempDir(), "audit"), Control: "a"}))
}

// requireAudited waits until the audit log of newAudit has records that begin so.
func requireAudited(t *testing.T, c *runningControl, want ...string) {
	t.Helper()
	for _, w := range want {
		testkit.WaitForValue(t, "the record "+w, func() []string { return audited(t, c.cfg.Audit.Path()) }, func(lines []string) bool {
			return slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, w) })
		})
	}
}

// TestAuditStream: a stream that exceeds a limit is recorded, with its node.
func TestAuditStream(t *testing.T) {
	c := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 1).list, Limits: server.Limits{NodeNames: 1}, Audit: newAudit(t)})
	d := openDelta(t, c)
	d.send(t, &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: "edge-9\n"}, TypeUrl: resources.EndpointType, ResourceNamesSubscribe: []string{"a", "b", "c"}})
	if _, err := d.stream.Recv(); err == nil {
		t.Fatal("the stream goes on")
	}
	requireAudited(t, c, "stream |  | refused | ")
}

// TestAuditOrders: every order is recorded with its outcome: those that are obeyed, that are refused for any reason, and the plan
// that comes of them.
func TestAuditOrders(t *testing.T) {
	log, deny := newAudit(t), false
	c := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 2).list, Admitter: new(fakeAdmitter),
		Audit: log, ConsoleToken: "0123456789abcdef",
		UserOf: func(client, server netip.AddrPort) string { return "uid 7" },
		AdmitOrder: func(client, server netip.AddrPort) error {
			if deny {
				return errors.New("user 7 is not admitted")
			}
			return nil
		}})
	waitFor(t, c, "a plan", func(s Status) bool { return s.Epoch > 0 })
	requireOK := requireOK(t)
	post(t, c, "/drain?replica=r0", nil)
	post(t, c, "/undrain?replica=r0", nil)
	post(t, c, "/drain?replica=r9%0Anew", nil)
	post(t, c, "/plan/pin?model=m&by=ops", nil)
	post(t, c, "/plan/rollback?model=m&epoch=99&by=ops", nil)
	requireOK(push(t, c, "slot=place&by=dev", []byte("module"), "generation 4"))
	push(t, c, "slot=place", []byte("module"), "forged")
	requireOK(post(t, c, "/policies/goal?slot=place&goal=warm", nil))
	requireOK(post(t, c, "/policies/rollback?slot=place&reason=slow", nil))
	post(t, c, "/drain?replica=r0", func(r *http.Request) { r.Host = "evil.example" })
	withToken := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(console.TokenHeader, token) }
	}
	requireOK(post(t, c, "/console/orders/drain?replica=r1&by=console", withToken("0123456789abcdef")))
	requireOK(post(t, c, "/console/orders/undrain?replica=r1", withToken("0123456789abcdef")))
	post(t, c, "/console/orders/plan/pin?model=m", withToken("0123456789abcdeg"))
	deny = true
	post(t, c, "/drain?replica=r0", nil)
	post(t, c, "/console/orders/drain?replica=r0", withToken("0123456789abcdef"))
	for _, path := range []string{"/status", "/policies", "/metrics"} {
		resp := testkit.Must(http.Get("http://" + c.AdminAddr().String() + path))
		resp.Body.Close()
	}
	c.stop()
	lines := audited(t, log.Path())
	got := strings.Join(lines, "\n")
	for _, want := range []string{
		"plan | model=m epoch=1 | done | adopted: ",
		"drain | replica=r0 | done |  | uid 7 |  | true",
		"undrain | replica=r0 | done |  | uid 7 |  | true",
		"drain | replica=r9\nnew | refused | ",
		"plan/pin | model=m | done |  | uid 7 | ops | true",
		"plan/rollback | epoch=99 model=m | refused | ",
		"policies/push | slot=place generation=4 name=m4 signers=ops sha256=",
		"policies/push | slot=place | refused | slot place: unknown signer | uid 7 |  | true",
		"policies/goal | goal=warm slot=place | done |  | uid 7 |  | true",
		"policies/rollback | reason=slow slot=place | done |  | uid 7 |  | true",
		`drain | replica=r0 | refused | host "evil.example": use localhost`,
		"drain | replica=r0 | refused | order refused: user 7 is not admitted",
		"console/orders/drain | replica=r1 | done |  | uid 7 | console | true",
		"console/orders/undrain | replica=r1 | done |  | uid 7 |  | true",
		"console/orders/plan/pin | model=m | refused | token: is not the one",
		"console/orders/drain | replica=r0 | refused | order refused: user 7 is not admitted",
	} {
		begin := func(line string) bool { return strings.HasPrefix(line, want) }
		if i := slices.IndexFunc(lines, begin); i < 0 || slices.ContainsFunc(lines[i+1:], begin) {
			t.Errorf("not one record %q", want)
		}
	}
	read := func(line string) bool {
		return strings.HasPrefix(line, "status |") || strings.HasPrefix(line, "metrics |")
	}
	if t.Failed() || slices.ContainsFunc(lines, read) {
		t.Errorf("the audit log:\n%s", got)
	}
}

// TestAuditFails: with a full disk under the audit log, orders are obeyed and plans are made; status and metrics say that records
// are lost.
func TestAuditFails(t *testing.T) {
	c := startControl(t, Config{Rules: fastRules(), Replicas: newFakeFleet(t, 2).list, Audit: testkit.Must(auditlog.New(auditlog.Config{Path: "/dev/full", Control: "a"}))})
	waitFor(t, c, "a plan, and the fault", func(s Status) bool {
		return s.PublishedEpoch > 0 && hasFault(s, FaultAudit, "file", "no space left")
	})
	begun := time.Now()
	if code, body := post(t, c, "/drain?replica=r0", nil); code != http.StatusOK {
		t.Errorf("drain: %d %s", code, body)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("an order took %v", took)
	}
	requireNamed(t, c, FaultAudit, "file", true)
	requireMetrics(t, c, "cascade_audit_records_dropped_total 0", "cascade_audit_records_total 0")
}

// TestAuditHostRefusals: what a host refuses is recorded once, and again when it changes.
func TestAuditHostRefusals(t *testing.T) {
	log, seen := newAudit(t), hostRefusals{}
	state := func(text string) []PolicySummary {
		return []PolicySummary{{Slot: lifecycle.Place, Hosts: []PolicyNode{{Node: "r0", SlotStatus: lifecycle.SlotStatus{Refused: text}}, {Node: "r1"}}}}
	}
	for _, text := range []string{"", "bad signature", "bad signature", "too large", "", "too large"} {
		seen.audit(log, state(text))
	}
	testkit.Run(t, log.Run)()
	want := []string{"bad signature", "too large", "too large"}
	got := audited(t, log.Path())
	for i, text := range want {
		if line := "module | slot=place host=r0 | refused | " + text + " | r0 |  | false"; len(got) != len(want) || got[i] != line {
			t.Errorf("%q, want %q as record %d", got, line, i)
		}
	}
}
