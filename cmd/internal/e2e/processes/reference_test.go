package processes

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// documented are the daemons of the reference of metrics, by their jobs in deploy/prometheus, in its order.
var documented = []struct{ job, command, of string }{
	{"cascade-control", "cascade control", "the control plane, at `control.admin`"},
	{"cascade-migrator", "cascade migrator", "each replica's migrator, at `replicas[].admin`. `cascade_migrator_…` also have the labels model and replica"},
	{"cascade-proxy", "cascade proxy", "the embedded proxy, at `proxy.admin`"},
	{"cascade-epp", "cascade epp", "the endpoint picker, at `--metrics-port`"},
	{"cascade-discovery", "cascade-kube discover", "discovery in Kubernetes, at `--admin`"},
	{"cascade-engine", "cascade engine", "the emulated engine, which also has vLLM's names (`vllm:…`)"},
}

// foreign are the beginnings of names that are not Cascade's.
var foreign = []string{"go_", "process_", "promhttp_", "vllm:"}

// unexposed are the metrics that the fleet of TestMetrics does not expose, by daemon: those with an unbounded or rarely
// used label appear with their first event. Their meaning is in the source, where TestMetricsReferenceIsWhole finds it.
var unexposed = map[string][]struct{ name, labels, when string }{
	"cascade control": {
		{"cascade_certificate_expiry_timestamp_seconds", "file", "with `tls`; also of migrators, proxies and pickers"},
		{"cascade_clients_refused_total", "", "with `tls.trust_domain`"},
	},
	"cascade migrator": {
		{"cascade_migrator_offers_returned_total", "reason", "from the first such offer on"},
		{"cascade_migrator_prefill_fetches_failed_total", "reason", "from the first failure on"},
		{"cascade_migrator_prefix_pulls_failed_total", "reason", "from the first failure on"},
		{"cascade_migrator_transfers_failed_total", "reason", "from the first failure on"},
	},
	"cascade proxy": {{"cascade_proxy_upstream_failures_total", "cluster, kind", "from the first failure on"}},
	"cascade epp":   {{"cascade_endpoint_picker_stage_requests_total", "model, stage", "from the first request on"}},
}

// metricsReference returns the page of the book about metrics, from what the daemons of a fleet expose.
func metricsReference(pages map[string][]map[string]*dto.MetricFamily) string {
	var out strings.Builder
	out.WriteString("# Metrics\n\n*Generated from the metrics of a running fleet by `make reference`; a test compares the two.*\n\n" +
		"Every daemon serves `/metrics` at its admin address, with the Go runtime's and the process's metrics (`go_…`, `process_…`) besides those below. " +
		"[The scrape configuration and the alerts](../../deploy/prometheus) and [a dashboard](../../deploy/grafana) are in `deploy`; [the runbook](../../deploy/runbook.md) says what to do about each alert.\n")
	for _, d := range documented {
		families := make(map[string]*dto.MetricFamily)
		labels := make(map[string]map[string]bool)
		for _, page := range pages[d.job] {
			for name, f := range page {
				if slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
					continue
				}
				families[name] = f
				if labels[name] == nil {
					labels[name] = make(map[string]bool)
				}
				for _, m := range f.GetMetric() {
					for _, l := range m.GetLabel() {
						labels[name][l.GetName()] = true
					}
				}
			}
		}
		fmt.Fprintf(&out, "\n## %s\n\nOf %s.\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n", d.command, d.of)
		for _, name := range slices.Sorted(maps.Keys(families)) {
			f := families[name]
			fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", name, strings.ToLower(f.GetType().String()), labelsOf(name, labels[name]), cell.Replace(f.GetHelp()))
		}
		if len(unexposed[d.command]) > 0 {
			out.WriteString("\nThese appear later:\n\n| metric | labels | exposed |\n|---|---|---|\n")
			for _, u := range unexposed[d.command] {
				fmt.Fprintf(&out, "| `%s` | %s | %s |\n", u.name, u.labels, u.when)
			}
		}
	}
	return out.String()
}

// labelsOf lists the labels of a metric, without those that every metric of a migrator has.
func labelsOf(name string, labels map[string]bool) string {
	if strings.HasPrefix(name, "cascade_migrator_") && labels["model"] && labels["replica"] {
		labels = maps.Clone(labels)
		delete(labels, "model")
		delete(labels, "replica")
	}
	return strings.Join(slices.Sorted(maps.Keys(labels)), ", ")
}

// cell escapes what Markdown would read as markup in a sentence of a table.
var cell = strings.NewReplacer("|", `\|`, "<", `\<`, "*", `\*`, "[", `\[`, "_", `\_`)

var (
	metricName = regexp.MustCompile(`^[a-z]+(_[a-z]+)+$`)
	// metricHelp is a sentence, by which a metric's name differs from other names.
	metricHelp = regexp.MustCompile(`^[A-Z0-9].* .*\.$`)
)

// TestMetricsReferenceIsWhole: the page has every metric that the sources of the daemons describe, and none is listed as
// unexposed that the fleet exposes. A description is a call, or the options of a metric, with a name and a sentence.
func TestMetricsReferenceIsWhole(t *testing.T) {
	t.Parallel()
	root := testkit.Root(t)
	page := string(testkit.Must(os.ReadFile(filepath.Join(root, "docs", "reference", "metrics.md"))))
	rows := make(map[string]int)
	for _, m := range regexp.MustCompile("(?m)^\\| `(cascade_[a-z_]+)`").FindAllStringSubmatch(page, -1) {
		rows[m[1]]++
	}
	for _, list := range unexposed {
		for _, u := range list {
			if rows[u.name] != 1 {
				t.Errorf("%s has %d rows: it is exposed, or the page is old", u.name, rows[u.name])
			}
		}
	}
	found := 0
	for _, dir := range []string{"cmd/cascade", "cmd/internal", "migrator", "xds"} {
		testkit.NoError(t, filepath.WalkDir(filepath.Join(root, filepath.FromSlash(dir)), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			text, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(text), "prometheus") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, text, 0)
			if err != nil {
				return err
			}
			for _, name := range describedMetrics(parsed) {
				found++
				if !slices.ContainsFunc(slices.Collect(maps.Keys(rows)), func(row string) bool { return row == name || strings.HasSuffix(row, "_"+name) }) {
					t.Errorf("%s: %s is not in docs/reference/metrics.md", file, name)
				}
			}
			return nil
		}))
	}
	if found < 140 || found > len(rows)+20 {
		t.Errorf("found %d descriptions of metrics, and the page has %d: the pattern is wrong", found, len(rows))
	}
}

// describedMetrics returns the names in the descriptions of metrics in a file, with or without their prefix.
func describedMetrics(file *ast.File) (names []string) {
	add := func(values []ast.Expr) {
		if len(values) < 2 {
			return
		}
		if name, help := literal(values[0]), literal(values[1]); metricName.MatchString(name) && metricHelp.MatchString(help) {
			names = append(names, name)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			add(n.Args)
		case *ast.CompositeLit:
			options := make([]ast.Expr, 2)
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Name" {
						options[0] = kv.Value
					} else if ok && key.Name == "Help" {
						options[1] = kv.Value
					}
				}
			}
			add(options)
		}
		return true
	})
	return names
}

// literal returns the value of a string literal, or "".
func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		if text, err := strconv.Unquote(l.Value); err == nil {
			return text
		}
	}
	return ""
}
