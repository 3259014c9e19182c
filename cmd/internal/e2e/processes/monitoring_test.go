package processes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cascadeinfer/cascade/cmd/internal/adminserver"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/discovery"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/monitoring"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
	"github.com/cascadeinfer/cascade/xds/auditlog"
	"github.com/cascadeinfer/cascade/xds/control"
)

// afterEvents are the metrics that a fleet exposes only once something has happened, and why not as zeros.
var afterEvents = map[string]string{
	"cascade_fault":                 "a sample is a fault: there is one while it is present",
	"cascade_group_requests":        "a group exists once one of its proxies has reported",
	"cascade_group_failed_requests": "as group_requests",
	"cascade_migrations_total":      "its labels have 42 combinations, of which a fleet has few",
	"cascade_proxy_requests_total":  "the codes that a cluster answers are not known before",
	"cascade_policy_calls_total":    "it counts the calls of a module, from when a host has it",
	"cascade_policy_faults_total":   "as policy_calls_total",
	"cascade_policy_starved_total":  "as policy_calls_total",
}

// knownValues are the values of labels that a fleet exposes while something is wrong.
var knownValues = map[string]map[string][]string{"cascade_fault": {
	"kind": {"model", "replica", "capacity", "descriptors", "memory", "certificate", "refused_clients", "store", "control_plane", "no_leader", "name",
		"fleet_file", "fleet_file_differs", "removal", "rollout", "publish", "policy", "audit", "overload"},
	"object": {"read", "write", "notes", "counters", "garbage"},
}}

// vllmProblems are what Prometheus finds wrong with vLLM's names, which emulated engines have, too.
var vllmProblems = map[string]string{
	"vllm:":                       "metric names should not contain ':'",
	"vllm:iteration_tokens_total": `non-counter metrics should not have "_total" suffix`,
}

// TestMetrics scrapes every daemon of a fleet: their metrics follow Prometheus's conventions, and expose what the alerts
// and the dashboard name.
func TestMetrics(t *testing.T) {
	t.Parallel()
	modules, key := newSigner(t)
	admin := testkit.Addresses(t, 6)
	f := newFleet(t, setup{replicas: 2, files: map[string][]byte{"ops.pub": key}, edit: func(c *config.Fleet) {
		c.State, c.Control.Estimator, c.Proxy.Admin, c.Policies.Keys = "state", "ext_proc", admin[0], []string{"ops.pub"}
		c.Control.Audit = "audit.jsonl"
		r := &c.Replicas[1]
		r.Blocks, r.Connector = "", "c1"
		r.KVEvents = config.KVEvents{Endpoint: "tcp://" + admin[1], ReplayEndpoint: "tcp://" + admin[2]}
	}})
	targets := map[string][]string{"cascade-control": {f.Admin}, "cascade-proxy": {"http://" + f.file.Proxy.Admin}}
	for _, r := range f.replicas {
		targets["cascade-migrator"] = append(targets["cascade-migrator"], "http://"+r.Admin)
		targets["cascade-engine"] = append(targets["cascade-engine"], r.Engine)
	}
	portOf := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	epp := start(t, "epp", "-c", f.path("fleet.yaml"), "--node-id", "edge-epp", "--grpc-port", portOf(admin[3]), "--grpc-health-port", portOf(admin[4]), "--metrics-port", portOf(admin[5]))
	epp.WaitForLog("endpoint picker on")
	targets["cascade-epp"] = []string{"http://" + admin[5]}
	// Discovery is a program of its own with a Kubernetes client, which this test does not build. Its metrics are these.
	found := adminserver.NewRegistry()
	found.MustRegister(discovery.NewCollector(func() discovery.Metrics { return discovery.Metrics{} }))
	page := httptest.NewServer(adminserver.Handler(found, func() string { return "" }))
	defer page.Close()
	targets["cascade-discovery"] = []string{page.URL}
	queries := monitoring.Queries(t)
	named := monitoring.Parse(t, queries)

	t.Run("at the start", func(t *testing.T) {
		at, _ := f.scrape(t, targets, nil)
		for i, q := range queries {
			later := slices.ContainsFunc(slices.Collect(maps.Keys(afterEvents)), func(name string) bool { return strings.Contains(q.Text, name) })
			for _, missing := range at.Missing(q, named[i], knownValues) {
				if !later {
					t.Errorf("%s: %s\nno daemon exposes at its start: %s; expose it as zero, or say in afterEvents why not", q.From, q.Text, missing)
				}
			}
		}
	})

	// The events: an answer, a migration, a module, a fault.
	stream := f.Stream(harness.Prompt(1, 400, forever))
	f.WaitForEvents([]*harness.Stream{stream}, 2)
	at := ""
	f.AwaitStatus("a replica has the stream", func(s control.Status) bool {
		for _, r := range harness.Replicas(s) {
			if r.Residents > 0 {
				at = string(r.ID)
			}
		}
		return at != ""
	})
	f.cascade("drain", at)
	f.cascade("policy", "push", modules.sign(t, "stay", "10", hosttest.Result(uint32(abi.None), 0)))
	f.awaitURL(f.Admin+"/metrics", `(?s)cascade_group_requests\{.*cascade_migrations_total\{.*cascade_policy_calls_total\{.*cascade_replica_proxy_requests\{`)
	f.requireAudited("drain | replica="+at, "policies/push | goal=shadow slot=place generation=10 name=stay ", "plan | model=m epoch=1 | done")
	f.write("fleet.yaml", []byte("models: [\n"))
	f.awaitURL(f.Admin+"/metrics", `cascade_fault\{`)
	stream.Leave()
	f.awaitURL("http://"+f.file.Proxy.Admin+"/metrics", `cascade_proxy_requests_total\{`)

	t.Run("after events", func(t *testing.T) {
		at, pages := f.scrape(t, targets, t)
		testkit.CompareGolden(t, filepath.Join(testkit.Root(t), "docs", "reference", "metrics.md"), []byte(metricsReference(pages)))
		for name := range afterEvents {
			if at[name] == nil {
				t.Errorf("%s is in afterEvents, and no event makes a daemon expose it", name)
			}
		}
		for i, q := range queries {
			for _, missing := range at.Missing(q, named[i], knownValues) {
				t.Errorf("%s: %s\nno daemon exposes: %s", q.From, q.Text, missing)
			}
		}
	})
}

// requireAudited waits until the audit log has records that begin so: "action | object | outcome | who".
func (f *fleet) requireAudited(want ...string) {
	f.T.Helper()
	f.WaitFor(fmt.Sprintf("the audit log has %q", want), func() bool {
		var lines []string
		for line := range bytes.Lines(testkit.Must(os.ReadFile(f.path("audit.jsonl")))) {
			var r auditlog.Record
			testkit.NoError(f.T, json.Unmarshal(line, &r))
			if r.From != "" && r.Who != fmt.Sprint("uid ", os.Getuid()) {
				f.T.Errorf("%s: the order is not this user's", line)
			}
			lines = append(lines, fmt.Sprintf("%s | %s | %s | %s", r.Action, r.Object, r.Outcome, r.Who))
		}
		return !slices.ContainsFunc(want, func(w string) bool {
			return !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, w) })
		})
	})
}

// scrape returns what all targets expose, by metric and by job. With lint, it checks their names by Prometheus's
// conventions, by its library and by promtool.
func (f *fleet) scrape(t *testing.T, targets map[string][]string, lint *testing.T) (out monitoring.Exposed, pages map[string][]map[string]*dto.MetricFamily) {
	t.Helper()
	out, pages = monitoring.Exposed{}, make(map[string][]map[string]*dto.MetricFamily)
	for job, list := range targets {
		for _, target := range list {
			page := testkit.Must(f.Get(target + "/metrics"))
			parser := expfmt.NewTextParser(model.LegacyValidation)
			families := testkit.Must(parser.TextToMetricFamilies(strings.NewReader(page)))
			out.Add(job, families)
			pages[job] = append(pages[job], families)
			if lint != nil {
				lintPage(lint, job, target, page, families)
			}
		}
	}
	return out, pages
}

// lintPage checks the names of a page. Those of vLLM are as vLLM has them.
func lintPage(t *testing.T, job, target, page string, families map[string]*dto.MetricFamily) {
	t.Helper()
	for _, p := range testkit.Must(promlint.NewWithMetricFamilies(slices.Collect(maps.Values(families))).Lint()) {
		if strings.HasPrefix(p.Metric, "vllm:") && (p.Text == vllmProblems["vllm:"] || p.Text == vllmProblems[p.Metric]) {
			continue
		}
		t.Errorf("%s at %s: %s: %s", job, target, p.Metric, p.Text)
	}
	if job == "cascade-engine" { // promtool has no exceptions
		page = strings.Join(slices.DeleteFunc(strings.Split(page, "\n"), func(line string) bool { return strings.Contains(line, "vllm:") }), "\n")
	}
	t.Run("promtool "+strings.TrimPrefix(target, "http://"), func(t *testing.T) {
		if out, err := monitoring.Promtool(t, t.TempDir(), []byte(page), "check", "metrics"); err != nil || out != "" {
			t.Errorf("promtool check metrics: %v\n%s", err, out)
		}
	})
}
