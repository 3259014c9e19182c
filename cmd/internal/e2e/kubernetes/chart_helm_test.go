package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

const (
	chart = root + "/deploy/helm/cascade"
	// chartKubernetes is the version of Kubernetes that the chart is rendered for.
	chartKubernetes = "1.34.1"
	chartNamespace  = "cascade"
)

// helmBinary returns the path of Helm: $HELM, or that of "make helm". Without one it skips the test, also in continuous
// integration: to build it takes minutes. It fails the test if HELM is set but is not an executable file.
func helmBinary(t testing.TB) string {
	t.Helper()
	return testkit.Program{
		Variable: "HELM", Cached: "helm/helm",
		Missing: testkit.Unavailable{What: "there is no Helm", Remedy: "run `make helm`, or set HELM to a binary"},
	}.Find(t)
}

// helm runs Helm and returns what it wrote.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	testkit.SkipSlow(t)
	cmd := exec.Command(helmBinary(t), args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG="+os.DevNull)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return out.String(), errors.New(stderr.String())
	}
	return out.String(), nil
}

// renderings returns what the chart renders with its defaults ("") and with each file of
// testdata/values.
func renderings(t *testing.T) map[string]string {
	t.Helper()
	files := testkit.Must(filepath.Glob("testdata/values/*.yaml"))
	if len(files) == 0 {
		t.Fatal("no values")
	}
	out := map[string]string{"": render(t)}
	for _, f := range files {
		out[strings.TrimSuffix(filepath.Base(f), ".yaml")] = render(t, "--values", f)
	}
	return out
}

func render(t *testing.T, args ...string) string {
	t.Helper()
	text, err := helm(t, append([]string{"template", "cascade", chart, "--namespace", chartNamespace, "--kube-version", chartKubernetes}, args...)...)
	testkit.NoError(t, err)
	return text
}

// object is a Kubernetes object.
type object map[string]any

func (o object) text(path ...string) string {
	var v any = map[string]any(o)
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	s, _ := v.(string)
	return s
}

// field returns the object at a path; nil if there is none.
func (o object) field(path ...string) object {
	v := map[string]any(o)
	for _, p := range path {
		v, _ = v[p].(map[string]any)
	}
	return v
}

func (o object) String() string { return o.text("kind") + " " + o.text("metadata", "name") }

// objects returns the objects in a stream of YAML documents.
func objects(t *testing.T, text string) (out []object) {
	t.Helper()
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o object
		testkit.NoError(t, yaml.Unmarshal([]byte(doc), &o))
		if len(o) > 0 {
			out = append(out, o)
		}
	}
	return out
}

// listOf returns a value that is a list; nil if it is none.
func listOf(v any) []any {
	l, _ := v.([]any)
	return l
}

// TestLint has Helm check the chart, with its defaults and each file of values.
func TestLint(t *testing.T) {
	args := []string{"lint", "--strict", "--kube-version", chartKubernetes, chart}
	for _, f := range append(testkit.Must(filepath.Glob("testdata/values/*.yaml")), "") {
		all := args
		if f != "" {
			all = append(args[:len(args):len(args)], "--values", f)
		}
		if out, err := helm(t, all...); err != nil {
			t.Errorf("%s: %v\n%s", f, err, out)
		}
	}
}

// TestRefusedValues: wrong values fail before anything is installed, with a message that names them.
func TestRefusedValues(t *testing.T) {
	for set, want := range map[string]string{
		"controlPlane.replica=2":    `'/controlPlane': additional properties 'replica' not allowed`,
		"controlPlane.replicas=0":   `/controlPlane/replicas`,
		"controlPlane.replicas=two": `/controlPlane/replicas`,
		"controlPlane.replicas=2":   `set controlPlane.state.etcd.endpoints or controlPlane.state.kubernetes.enabled`,
		"controlPlane.state.kubernetes.enabled=true,controlPlane.state.etcd.endpoints={a:2379}": `choose one`,
		"controlPlane.estimator=ext_proc":         `/controlPlane/estimator`,
		"controlPlane.state.persistence.size=big": `/controlPlane/state/persistence/size`,
		"controlPlane.state.etcd.prefix=fleet":    `/controlPlane/state/etcd/prefix`,
		"controlPlane.resources.limit.memory=1Gi": `'/controlPlane/resources': additional properties 'limit' not allowed`,
		"fleet.plannr.period=1s":                  `'/fleet': additional properties 'plannr' not allowed`,
		"fleet.state=/tmp":                        `'/fleet': additional properties 'state' not allowed`,
		"fleet.control.listen=0.0.0.0:18000":      `/fleet/control/listen`,
		"fleet.models=null":                       `missing property 'models'`,
		"fleetFiles.fleet\\.yaml=x":               `invalid propertyName 'fleet.yaml'`,
		"fleetFiles.fleet-1\\.yaml=x":             `invalid propertyName 'fleet-1.yaml'`,
		"migrator.replica.id=r0":                  `/migrator/replica/id`,
		"image.digest=latest":                     `/image/digest`,
		"tls.trustDomain=Example.Org":             `/tls/trustDomain`,
		"networkPolicy.client=x":                  `'/networkPolicy': additional properties 'client' not allowed`,
		"metrics.serviceMonitor.enabled=true":     `set metrics.enabled, too`,
		"hpa.enabled=true":                        `hpa.model, hpa.target.name`,
		"hpa.enabled=true,hpa.target.name=llama,hpa.model=meta-llama/Llama-3.1-8B-Instruct": `cannot be the value of a label`,
		"epp.inferencePool.create=true":       `epp.inferencePool.matchLabels`,
		"controlPlane.discovery.enabled=true": `pool or service`,
		"controlPlane.discovery.enabled=true,controlPlane.discovery.pool=a,controlPlane.discovery.service=b":                                                             `pool or service`,
		"controlPlane.discovery.enabled=true,controlPlane.discovery.pool=a,fleetFiles.x=y,fleet.models[0].profile=x,fleet.models[0].name=m,fleet.models[0].context=4096": `write /etc/cascade/fleet/x`,
		"epp.fallbacks=4":                                                 `/epp/fallbacks`,
		"epp.enabled=true,epp.replicas=2":                                 `set tls.certManager.enabled`,
		"podDisruptionBudget.enabled=false":                               `additional properties 'podDisruptionBudget' not allowed`,
		"epp.inferencePool.matchLabels.a=b,epp.inferencePool.create=true": `set epp.enabled`,
	} {
		_, err := helm(t, "template", "cascade", chart, "--kube-version", chartKubernetes, "--set", set)
		testkit.WantError(t, err, want)
	}
	_, err := helm(t, "template", "cascade", chart, "--kube-version", "1.28.0")
	testkit.WantError(t, err, "incompatible with Kubernetes v1.28.0")
}

// numerals are texts that look like numbers: they stand in a rendering only as what they are.
const numerals = `
controlPlane:
  priorityClassName: "70"
  state: {etcd: {endpoints: ["etcd:2379"], secret: "71", user: "72", passwordSecret: "73"}}
  discovery: {enabled: true, service: "74"}
serviceAccount: {name: "75"}
commonLabels: {team: "76"}
tls: {controlSecret: "77", eppSecret: "78", trustDomain: "79"}
metrics: {enabled: true, serviceMonitor: {enabled: true, secret: "80"}}
epp: {enabled: true, model: "a: b # c", inferencePool: {create: true, name: "81", matchLabels: {app: "82"}}}
hpa: {enabled: true, model: "83", target: {name: "84"}}
`

// TestNumerals: names and labels that look like numbers stay texts, also those of the release and of its namespace: the
// API server refuses numbers in their place.
func TestNumerals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "values.yaml")
	var check func(where string, v any)
	check = func(where string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				check(where+"."+key, value)
			}
		case []any:
			for i, value := range v {
				check(fmt.Sprintf("%s[%d]", where, i), value)
			}
		case uint64:
			if v >= 70 && v <= 84 || v == 123 || v == 456 {
				t.Errorf("%s is the number %d", where, v)
			}
		}
	}
	for _, values := range []string{numerals, strings.Replace(numerals, "service:", "pool:", 1)} {
		testkit.NoError(t, os.WriteFile(path, []byte(values), 0o600))
		text := testkit.Must(helm(t, "template", "123", chart, "--namespace", "456", "--kube-version", chartKubernetes, "--values", path))
		for _, o := range objects(t, text) {
			check(o.String(), map[string]any(o))
		}
		if !strings.Contains(text, `- "--model=a: b # c"`) {
			t.Error("the picker's model is another one")
		}
	}
}

// TestRestarts: an upgrade replaces the Pods whose fleet file changes in more than its replicas, and no others.
func TestRestarts(t *testing.T) {
	hashes := func(set string) string {
		var out []string
		for _, o := range objects(t, render(t, "--set", "epp.enabled=true", "--set", set)) {
			if hash := o.text("spec", "template", "metadata", "annotations", "app.cascadeinfer.com/fleet"); hash != "" {
				out = append(out, hash)
			}
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	was := hashes("controlPlane.replicas=1")
	for _, set := range []string{
		"fleet.preset=paper", "fleetFiles.engine\\.json=x", "tls.trustDomain=example.org", "controlPlane.estimator=wasm",
		"controlPlane.state.persistence.enabled=false",
	} {
		if hashes(set) == was {
			t.Errorf("%s changes a fleet file and replaces no Pod", set)
		}
	}
	if hashes("fleet.replicas[0].id=a,fleet.replicas[0].address=a:1,fleet.replicas[0].peer=a:2,fleet.replicas[0].engine=http://a") != was {
		t.Error("another list of replicas replaces Pods")
	}
}

// perPod has the values of the Pods' environment variables that fleet files name.
var perPod = map[string]string{"POD_NAME": "llama-0", "POD_UID": "9f2c", "POD_IP": "10.0.0.21", "NODE_NAME": "node-a", "CONTROL_SERVICE_IP": "10.96.0.5"}

// TestRenderedFleetFiles: each fleet file in a ConfigMap starts a daemon, and Pods set the variables that it
// names.
func TestRenderedFleetFiles(t *testing.T) {
	for name, value := range perPod {
		t.Setenv(name, value)
	}
	variable := regexp.MustCompile(`\$\{([A-Z_]+)\}`)
	for name, text := range renderings(t) {
		files := 0
		for _, o := range objects(t, text) {
			if o.text("kind") != "ConfigMap" {
				continue
			}
			for key, content := range o["data"].(map[string]any) {
				file := content.(string)
				if !strings.HasPrefix(key, "fleet") {
					continue
				}
				files++
				path := filepath.Join(t.TempDir(), key)
				testkit.NoError(t, os.WriteFile(path, []byte(file), 0o600))
				if !strings.Contains(file, "\nreplicas:") { // as discovery completes it
					file += "\nreplicas: [{id: llama-0.9f2c, address: 10.0.0.21:9000, peer: 10.0.0.21:9100, engine: 'http://127.0.0.1:8000'}]\n"
					testkit.NoError(t, os.WriteFile(path, []byte(file), 0o600))
				}
				fleet, err := config.Load(path)
				if err != nil {
					t.Errorf("values %q: %v: %v\n%s", name, o, err, file)
					continue
				}
				if fleet.TLS.TrustDomain == "" {
					t.Errorf("values %q: %v: no identities", name, o)
				}
				for _, m := range variable.FindAllStringSubmatch(file, -1) {
					if _, ok := perPod[m[1]]; !ok {
						t.Errorf("values %q: %v: ${%s} is not set in any Pod", name, o, m[1])
					}
					if o.text("metadata", "labels", "app.kubernetes.io/component") == "control" && !strings.Contains(text, "{name: "+m[1]+", value") {
						t.Errorf("values %q: %v: the control plane's Pods do not set ${%s}", name, o, m[1])
					}
				}
			}
		}
		if files == 0 {
			t.Errorf("values %q: no fleet file", name)
		}
	}
}

// TestRestrictedPods: all Pods of the chart run as Pod Security's level "restricted" asks, and with a read-only root.
func TestRestrictedPods(t *testing.T) {
	for name, text := range renderings(t) {
		pods := 0
		for _, o := range objects(t, text) {
			pod := podSpec(o)
			if pod == nil {
				continue
			}
			pods++
			security := pod["securityContext"].(map[string]any)
			if security["runAsNonRoot"] != true || pod.text("securityContext", "seccompProfile", "type") != "RuntimeDefault" || pod["automountServiceAccountToken"] != false {
				t.Errorf("values %q: %v: %v", name, o, security)
			}
			for _, c := range slices.Concat(listOf(pod["initContainers"]), listOf(pod["containers"])[:1]) {
				c := object(c.(map[string]any))
				own := c["securityContext"].(map[string]any)
				if own["readOnlyRootFilesystem"] != true || own["allowPrivilegeEscalation"] != false || c.text("image") == "" {
					t.Errorf("values %q: %v: %v", name, o, own)
				}
				if drop, _ := own["capabilities"].(map[string]any)["drop"].([]any); len(drop) != 1 || drop[0] != "ALL" {
					t.Errorf("values %q: %v: capabilities %v", name, o, own["capabilities"])
				}
			}
		}
		if pods == 0 {
			t.Errorf("values %q: no Pods", name)
		}
	}
}

// TestRoles: the chart grants what deploy/kubernetes documents for cascade-kube, and nothing else.
func TestRoles(t *testing.T) {
	rules := func(text string) (out []string) {
		for _, o := range objects(t, text) {
			if o.text("kind") != "Role" {
				continue
			}
			for _, r := range listOf(o["rules"]) {
				out = append(out, fmt.Sprint(r))
			}
		}
		slices.Sort(out)
		return out
	}
	read := func(name string) string {
		return string(testkit.Must(os.ReadFile(filepath.Join(root, "deploy", "kubernetes", name))))
	}
	conditions := rules(read("discovery-conditions.yaml"))
	documented := slices.Concat(rules(read("control-role.yaml")), rules(read("discovery.yaml")), conditions)
	all := renderings(t)
	got := rules(all["gates"])
	for _, r := range got {
		if !slices.Contains(documented, r) {
			t.Errorf("the chart grants %s", r)
		}
	}
	for _, r := range documented { // of the rules for a Service and for a pool the chart has one
		if !slices.Contains(got, r) && !strings.Contains(r, "services") && !strings.Contains(r, "endpointslices") {
			t.Errorf("the chart does not grant %s", r)
		}
	}
	// Without conditions the same, but what these need.
	want := slices.DeleteFunc(slices.Clone(got), func(r string) bool { return slices.Contains(conditions, r) })
	if less := rules(all["state"]); len(want) == len(got) || !slices.Equal(less, want) {
		t.Errorf("without conditions the chart grants %s, want %s", less, want)
	}
	if none := rules(all[""]); len(none) > 0 {
		t.Errorf("without discovery the chart grants %v", none)
	}
}
