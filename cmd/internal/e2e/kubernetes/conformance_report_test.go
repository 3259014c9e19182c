//go:build linux

package kubernetes

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// result is that of one test of the suite.
type result struct {
	test   string
	passed bool
	detail string // the first error of a test that failed
}

var (
	// resultLine is how the testing package reports a test of the suite, which is a subtest of one test.
	resultLine = regexp.MustCompile(`^    --- (PASS|FAIL|SKIP): TestConformance/([A-Za-z0-9]+) \(`)
	errorLine  = regexp.MustCompile(`^\s+Error:\s+(\S.*)$|^ +\S+\.go:\d+: (?:\S+: )?(Not all .*|Requests were not .*|time(?:d )?out .*)$`)
	startLine  = regexp.MustCompile(`^=== RUN +TestConformance/([A-Za-z0-9]+)`)
)

// parseResults reads the output of the suite.
func parseResults(in *bufio.Scanner) (out []result) {
	in.Buffer(nil, 1<<20)
	current, errors := "", map[string]string{}
	for in.Scan() {
		line := in.Text()
		if m := startLine.FindStringSubmatch(line); m != nil {
			current = m[1]
		} else if m := errorLine.FindStringSubmatch(line); m != nil && errors[current] == "" {
			errors[current] = m[1] + m[2]
		} else if m := resultLine.FindStringSubmatch(line); m != nil {
			r := result{test: m[2], passed: m[1] == "PASS"}
			if !r.passed {
				r.detail = strings.ToLower(m[1]) + ": " + errors[r.test]
			}
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b result) int { return strings.Compare(a.test, b.test) })
	return out
}

// TestParseResults reads what the suite prints.
func TestParseResults(t *testing.T) {
	out := parseResults(bufio.NewScanner(strings.NewReader(`=== RUN   TestConformance
=== RUN   TestConformance/B
        	Error:      	waited too long
=== RUN   TestConformance/A
=== RUN   TestConformance/C
    http.go:259: 2026-11-28T16:31:14.449806827Z: timeout while waiting after 199 attempts, 0/3 successes
=== RUN   TestConformance/A/part
--- FAIL: TestConformance (9.81s)
    --- FAIL: TestConformance/B (1.00s)
        --- FAIL: TestConformance/B/part (1.00s)
    --- FAIL: TestConformance/C (1.00s)
    --- PASS: TestConformance/A (1.00s)
        --- PASS: TestConformance/A/part (1.00s)
`)))
	if got, want := fmt.Sprint(out), "[{A true } {B false fail: waited too long} {C false fail: timeout while waiting after 199 attempts, 0/3 successes}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// moduleVersion returns the version of a module in a go.mod file.
func moduleVersion(t *testing.T, file, module string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	testkit.NoError(t, err)
	m := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s does not require %s", file, module)
	}
	return string(m[1])
}

// compareReport compares the results with the page of the documentation.
func compareReport(t *testing.T, results []result, envoy string) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, reportHead,
		moduleVersion(t, "suite/go.mod", "sigs.k8s.io/gateway-api-inference-extension"), moduleVersion(t, "suite/go.mod", "sigs.k8s.io/gateway-api"),
		moduleVersion(t, "pilot/go.mod", "istio.io/istio"), envoy, moduleVersion(t, filepath.Join(root, "xds", "kubetest", "apiserver", "go.mod"), "k8s.io/kubernetes"))
	passed := 0
	for _, r := range results {
		outcome := "passed"
		if r.passed {
			passed++
		} else {
			t.Logf("%s: %s", r.test, r.detail)
			outcome = "failed: " + failures[r.test]
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.test, pickerPart[r.test], outcome)
	}
	fmt.Fprintf(&b, "\n%d of %d passed.\n", passed, len(results))
	testkit.CompareGolden(t, filepath.Join(root, "docs", "conformance.md"), []byte(b.String()))
}

// failures are the tests that fail, and why.
var failures = map[string]string{
	"GatewayWeightedAcrossTwoInferencePools": "for a rule with several pools this version of Istio asks one picker, that of the last pool (`buildHTTPDestination`), which has no Pods of the others and rightly answers 503",
}

// pickerPart is what a test asks of the picker.
var pickerPart = map[string]string{
	"EppUnAvailableFailOpen":                        "picks the endpoint that the request names; when it is gone, the gateway serves without it",
	"GatewayDestinationEndpointServed":              "learns which endpoint served, and says so",
	"GatewayFollowingEPPRouting":                    "picks among the endpoints that the request names, under 10 concurrent requests",
	"GatewayFollowingEPPRoutingWithDataParallelism": "picks among several ports of each Pod",
	"GatewayWeightedAcrossTwoInferencePools":        "picks only endpoints of its own pool",
	"HTTPRouteInvalidInferencePoolRef":              "none: it is not asked",
	"HTTPRouteMultipleGatewaysDifferentPools":       "picks for requests without a body",
	"HTTPRouteMultipleRulesDifferentPools":          "picks for requests without a body",
	"InferencePoolAccepted":                         "picks for requests without a body",
	"InferencePoolHTTPRoutePortValidation":          "picks for requests without a body",
	"InferencePoolInvalidEPPService":                "none: it is not there",
	"InferencePoolResolvedRefsCondition":            "picks for requests without a body",
}

// reportHead is the page up to its rows.
const reportHead = `# Conformance

The conformance suite of the Gateway API Inference Extension tests a gateway together with the endpoint pickers of its InferencePools. ` + "`make conformance`" + ` runs the suite, unchanged, with ` + "`cascade-kube epp`" + ` wherever it deploys the reference picker, and fails where a result differs from this page. ` + "`cascade epp`" + ` answers by the same server (package ` + "`xds/endpointpicker`" + `), with other endpoints.

| | version |
|---|---|
| suite: ` + "`sigs.k8s.io/gateway-api-inference-extension`" + `, profile Gateway | %s |
| Gateway API | %s |
| gateway: Istio's control plane, ` + "`istio.io/istio`" + ` | %s |
| data plane: stock Envoy | %s |
| API server: Kubernetes | %s |

Nothing of these is changed. What differs from a cluster: Pods are processes in network namespaces; Envoy runs without Istio's agent, so that Istio's own filters and mutual TLS are off; the pickers get ` + "`--host`, `--secure-serving` and `--kubeconfig`" + ` besides the reference picker's flags, and the permissions of the suite's own Role. Both gateways have a route to a further pool, because this version of Istio may leave its filter out of a listener when a gateway's only route to a pool is replaced within some 300 ms.

| test | what it asks of the picker | result |
|---|---|---|
`
