package config

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// validFleet uses every section.
const validFleet = `preset: default
speed: 10
state: ./state
models:
- name: m
  context: 4096
  hosts: [m.example]
  profile: h200-llama-3.1-8b
  bytes_per_token: 4
replicas:
- id: r0
  model: m
  address: 127.0.0.1:9000
  peer: 127.0.0.1:9100
  engine: http://127.0.0.1:8000
  blocks: run/r0
  tp: 2
- id: r1
  address: 127.0.0.1:9001
  peer: 127.0.0.1:9101
  admin: 127.0.0.1:9201
  engine: http://127.0.0.1:8001
  host: n1
  tp: 2
control:
  listen: 127.0.0.1:18000
  admin: 127.0.0.1:18001
  estimator: content-length
proxy:
  listen: 127.0.0.1:8080
planner:
  period: 5s
  window: 30s
  iteration: 50ms
  min_requests: 100
migration:
  mode: reprompt
  link_gbps: 100
  max_concurrent: 2
policies:
  keys: [ops.pub, dev.pub]
  threshold: 2
  cache: ./cache
  rules: [rules]
  data: limits.json
  gates:
    shadow: {calls: 10, soak: 1s, worse: -1}
    canary: {soak: -1s}
    ladder: [5]
    kinds: {partition: {canary: {calls: 4}}}
  limits:
    bid-select: {fuel: 1000, wall: 2ms, pages: 9}
`

func TestReadFillsDefaults(t *testing.T) {
	f, err := Read(strings.NewReader(validFleet))
	if err != nil {
		t.Fatal(err)
	}
	if f.Replicas[1].Model != "m" || f.Replicas[0].Host != "local" || f.Replicas[0].TP != 2 {
		t.Errorf("replica defaults: %+v", f.Replicas)
	}
	if f.Planner.Period != 5*time.Second || f.Planner.Iteration != 50*time.Millisecond {
		t.Errorf("durations: %+v", f.Planner)
	}
	two := strings.Replace(validFleet, "- name: m\n", "- {name: other, context: 64, profile: p}\n- name: m\n", 1)
	two = strings.Replace(two, "  estimator: content-length\n", "", 1)
	two = strings.Replace(two, "- id: r1\n", "- id: r1\n  model: other\n", 1)
	f, err = Read(strings.NewReader(two))
	if err != nil {
		t.Fatal(err)
	}
	if f.Control.Estimator != "ext_proc" {
		t.Errorf("two models on one host need ext_proc, got %q", f.Control.Estimator)
	}
}

// TestSeveralControlPlanes: they need a directory to share.
func TestSeveralControlPlanes(t *testing.T) {
	text := strings.Replace(validFleet, "estimator: content-length", "peers: [\"127.0.0.1:18100\"]\n  name: cp-1\n  admin_hosts: [cascade.example]", 1)
	f, err := Read(strings.NewReader(text))
	if err != nil || f.Control.Name != "cp-1" || len(f.Control.Peers) != 1 {
		t.Fatalf("%+v, %v", f.Control, err)
	}
	if _, err := Read(strings.NewReader(strings.Replace(text, "state: ./state\n", "", 1))); err == nil || !strings.Contains(err.Error(), "state: several control planes") {
		t.Errorf("without a directory: %v", err)
	}
}

// TestReadRejectsInvalidFields breaks each field in turn: the error must name the
// field and its line.
func TestReadRejectsInvalidFields(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{"preset: default", "preset: fast", `line 1: preset: "fast": must be one of`},
		{"speed: 10", "speed: -1", "line 2: speed: -1: must be from"},
		{"speed: 10", "speed: .nan", "line 2: speed: NaN: must be from"},
		{"speed: 10", "speed: ten", "[2:8]"},
		{"state: ./state", "stat: ./state", `unknown field "stat"`},
		{"name: m\n", "name: \"\"\n", "models[0].name: must have 1 to 256"},
		{"context: 4096", "context: 8", "line 6: models[0].context: 8: must be from"},
		{"context: 4096", "context: 4096\n  kv_tokens: 100", "models[0].kv_tokens: 100 is less than"},
		{"context: 4096", "context: 4096\n  batch: -1", "models[0].batch: -1 is negative"},
		{"hosts: [m.example]", `hosts: ["*"]`, "models[0].hosts[0]"},
		{"profile: h200-llama-3.1-8b", `profile: ""`, "models[0].profile"},
		{"bytes_per_token: 4", "bytes_per_token: 40", "models[0].bytes_per_token: 40: must be from"},
		{"id: r1", "id: r0", `replicas[1].id: "r0" is defined twice`},
		{"id: r1", `id: ""`, "replicas[1].id: must have"},
		{"  model: m\n", "  model: x\n", `line 12: replicas[0].model: "x" is not in models`},
		{"address: 127.0.0.1:9001", "address: 127.0.0.1", `replicas[1].address: "127.0.0.1": must be host:port`},
		{"address: 127.0.0.1:9001", "address: 127.0.0.1:9000", "replicas[1].address: 127.0.0.1:9000 is also replicas[0].address"},
		{"peer: 127.0.0.1:9101", "peer: 10.0.0.1:9101", "replicas[1].peer: 10.0.0.1:9101 is not loopback; set tls"},
		{"admin: 127.0.0.1:9201", "admin: x", "replicas[1].admin"},
		{"engine: http://127.0.0.1:8001", "engine: 127.0.0.1:8001", "replicas[1].engine"},
		{"engine: http://127.0.0.1:8001", "engine: http://10.0.0.1:8001", "is not on loopback; only the migrator"},
		{"host: n1\n  tp: 2", "host: n1\n  tp: 65", "line 24: replicas[1].tp: 65: must be from 1 to 64"},
		{"tp: 2", "drain: maybe", "[17:10]"},
		{"host: n1\n  tp: 2", "host: n1\n  tp: 4", `replicas[0]: the replicas of "m" differ in profile or tp: set kv_tokens and batch`},
		{"host: n1\n  tp: 2", "host: n1\n  tp: 2\n  profile: other.json\n  kv_tokens: 5000\n  batch: 8", `replicas[0]: the replicas of "m" differ`},
		{"host: n1\n  tp: 2", "host: n1\n  tp: 2\n  kv_tokens: 100", "replicas[1].kv_tokens: 100 is less than"},
		{"host: n1\n  tp: 2", "host: n1\n  tp: 2\n  batch: -1", "replicas[1].batch: -1 is negative"},
		{"hosts: [m.example]", "hosts: [m.example]\n  adapters: [{name: m}]", `models[0].adapters[0].name: "m" is already the name of a model`},
		{"hosts: [m.example]", "hosts: [m.example]\n  adapters: [{name: a}, {name: a}]", `models[0].adapters[1].name: "a" is already the name of an adapter`},
		{"hosts: [m.example]", "hosts: [m.example]\n  adapters: [{replicas: [r0]}]", "models[0].adapters[0].name: must have 1 to 256"},
		{"hosts: [m.example]", "hosts: [m.example]\n  adapters: [{name: a, replicas: [r9]}]", `models[0].adapters[0].replicas[0]: "r9" is not a replica of "m"`},
		{"estimator: content-length", "estimator: magic", "control.estimator"},
		{"estimator: content-length", "estimator: wasm", "control.module: estimator wasm"},
		{"estimator: content-length", "estimator: content-length\n  module: a.wasm", "control.module: estimator wasm"},
		{"listen: 127.0.0.1:18000", "listen: 0.0.0.0:18000", "control.listen: 0.0.0.0:18000 is not loopback"},
		{"estimator: content-length", "peers: [\"127.0.0.1:18100\", \"127.0.0.1:18100\"]", "control.peers[1]: 127.0.0.1:18100 is listed twice"},
		{"estimator: content-length", "peers: [\"control:18100\"]", "control.peers[0]"},
		{"estimator: content-length", "peers: [\"10.0.0.1:18100\"]", "control.peers[0]: 10.0.0.1:18100 is not loopback"},
		{"estimator: content-length", "peers: [\"127.0.0.1:18100\"]\n  estimator: ext_proc", "control.estimator: each control plane serves"},
		{"estimator: content-length", "admin_hosts: [\"Cascade.example\"]", "control.admin_hosts[0]"},
		{"estimator: content-length", "admin_hosts: [\"cascade.example:80\"]", "control.admin_hosts[0]"},
		{"admin: 127.0.0.1:18001", "admin: :x", "control.admin"},
		{"admin: 127.0.0.1:18001", "admin: 0.0.0.0:18001", "control.admin: 0.0.0.0:18001 is not loopback, and the admin server has no authentication"},
		{"address: 127.0.0.1:9001", "address: localhost:9001", `replicas[1].address: "localhost:9001": proxies get this address over xDS, which needs an IP`},
		{"listen: 127.0.0.1:8080", "listen: localhost:8080", `proxy.listen: "localhost:8080": proxies get this address`},
		{"listen: 127.0.0.1:8080", "listen: localhost", "proxy.listen"},
		{"listen: 127.0.0.1:8080", "listen: 127.0.0.1:8080\n  admin: y", "proxy.admin"},
		{"listen: 127.0.0.1:8080", "listen: 127.0.0.1:8080\n  tls: {cert: y}", "proxy.tls: cert and key belong together"},
		{"estimator: content-length", "xds_cluster: \"a\\nb\"", "control.xds_cluster: must have 1 to 128 bytes"},
		{"estimator: content-length", "limits: {rate: -1}", "control.limits.rate: -1: must be from"},
		{"estimator: content-length", "limits: {nodes: 100000000}", "control.limits.nodes: 100000000: must be from"},
		{"estimator: content-length", "limits: {burst: 3}", "control.limits.burst: 3: an Envoy sends"},
		{"estimator: content-length", "limits: {stream_names: 9, node_names: 8}", "control.limits.stream_names: 9 exceeds"},
		{"estimator: content-length", "limits: {request: 9}", `unknown field "request"`},
		{"estimator: content-length", "groups: [{name: a}]", "control.groups[0]: group 1 \"a\": no patterns: set nodes or clusters"},
		{"estimator: content-length", "groups: [{name: a, nodes: [x]}, {name: a, nodes: [y]}]", "control.groups: group \"a\": duplicate name"},
		{"estimator: content-length", "groups: [{name: a, nodes: ['[x']}]", "control.groups[0]: group 1 \"a\": pattern"},
		{"estimator: content-length", "soak: -1s", "control.soak: -1s: must be from"},
		{"period: 5s", "period: 1ms", "planner.period: 1ms: must be from"},
		{"window: 30s", "window: 30", "[33:11]"},
		{"period: 5s", "stages: 9", "line 32: planner.stages: this field was removed: the planner finds"},
		{"iteration: 50ms", "iteration: -1ms", "planner.iteration"},
		{"period: 5s", "period: 5s\n  pooling: 5", "line 33: planner.pooling: this field was removed"},
		{"listen: 127.0.0.1:18000\n  admin: 127.0.0.1:18001\n  estimator: content-length\n", "listen: 10.0.0.1:18000\n  estimator: ext_proc\ntls: {cert: a, key: b, ca: c}\n", "control.estimator: the control plane serves ext_proc in plain text"},
		{"mode: reprompt", "mode: magic", `migration.mode: "magic": must be one of`},
		{"link_gbps: 100", "link_gbps: .inf", "migration.link_gbps: +Inf: must be from"},
		{"max_concurrent: 2", "max_concurrent: -1", "migration.max_concurrent: -1: must be from 1 to 256"},
		{"max_concurrent: 2", "sample: 2", "migration.sample: this field was removed"},
		{"max_concurrent: 2", "select: random", "migration.select: this field was removed"},
		{"max_concurrent: 2", "outlier_percent: 5", "migration.outlier_percent: this field was removed"},
		{"max_concurrent: 2", "leases: 1s", `unknown field "leases"`},
		{"host: n1\n", "host: n1\n  gpu: -1\n", "replicas[1].gpu: -1: must be from 0 to 1023"},
		{"host: n1\n", "host: n1\n  rdma: {port: 1}\n", "replicas[1].rdma.device: name the device"},
		{"host: n1\n", "host: n1\n  rdma: {device: mlx5_0, port: 256}\n", "replicas[1].rdma.port: 256: must be from 1 to 255"},
		{"host: n1\n", "host: n1\n  rdma: {device: mlx5_0, address: ib0}\n", `replicas[1].rdma.address: "ib0" is not an IP address`},
		{"migration:\n", "rdma: {traffic_class: 256}\nmigration:\n", "rdma.traffic_class: 256: must be from 0 to 255"},
		{"migration:\n", "cuda: {copy: engine}\nmigration:\n", "cuda.copy: \"engine\": must be one of"},
		{"migration:\n", "cuda: {groups: 1025}\nmigration:\n", "cuda.groups: 1025: must be from 1 to 1024"},
		{"migration:\n", "rdma: {service_level: -1}\nmigration:\n", "rdma.service_level: -1: must be from 0 to 15"},
		{"link_gbps: 100", "host_gbps: -1", "migration.host_gbps: -1: must be from"},
		{"host: n1\n", "host: n1\n  blocks: run/../run/r0\n", "replicas[1].blocks: run/../run/r0 is also replicas[0].blocks"},
		{"blocks: run/r0", "blocks: " + strings.Repeat("a", 91), "replicas[0].blocks: 91 bytes exceed"},
		{"threshold: 2", "instances: 1025", "line 42: policies.instances: this field was removed"},
		{"threshold: 2", "cache_mib: 1", "policies.cache_mib: this field was removed"},
		{"threshold: 2", "cache_modules: 1", "policies.cache_modules: this field was removed"},
		{"threshold: 2", "modules: m", "policies.modules: this field was removed"},
		{"threshold: 2", "threshold: 17", "line 42: policies.threshold: 17: must be from 1 to 16"},
		{"keys: [ops.pub, dev.pub]\n", "native: true\n", "policies.threshold: there are no keys"},
		{"[ops.pub, dev.pub]", "[ops.pub, ops.pub]", "policies.keys[1]: \"ops.pub\": name each PEM file once"},
		{"[ops.pub, dev.pub]", "ops.pub", "[41:9]"},
		{"rules: [rules]", "rules: ['']", "policies.rules[0]: name a file or a directory"},
		{"  rules: [rules]\n", "", "policies.data: there are no rules"},
		{"worse: -1", "worse: 1001", "line 47: policies.gates.shadow.worse: 1001: must be from -1 to 1000"},
		{"soak: -1s", "soak: 25h", "policies.gates.canary.soak: 25h0m0s: must be from"},
		{"calls: 10,", "calls: 9000000000,", "policies.gates.shadow.calls"},
		{"ladder: [5]", "patience: 25h", "line 49: policies.gates.patience: this field was removed"},
		{"{partition: {canary: {calls: 4}}}", "{partitions: {canary: {calls: 4}}}", "policies.gates.kinds: \"partitions\" is not a policy kind; use partition"},
		{"canary: {calls: 4}", "canary: {worse: -2}", "policies.gates.kinds.partition.canary.worse"},
		{"ladder: [5]", "ladder: [5, 5]", "policies.gates.ladder[1]: 5: steps must increase"},
		{"ladder: [5]", "faults: 1025", "policies.gates.faults: this field was removed"},
		{"ladder: [5]", "window: 1s", "policies.gates.window: this field was removed"},
		{"bid-select:", "bid-choose:", `policies.limits: "bid-choose" is not a policy kind; use partition, refine, bid-quote`},
		{"wall: 2ms", "wall: 2h", "policies.limits.bid-select.wall: 2h0m0s: must be from"},
		{"fuel: 1000", "fuel: -1", "line 52: policies.limits.bid-select.fuel: -1: must be from"},
		{"fuel: 1000", "gas: 1000", `unknown field "gas"`},
		{"planner:\n", "tls: {cert: a}\nplanner:\n", "tls: cert, key and ca belong together"},
		{"- name: m\n", "- {name: m, context: 64, profile: p}\n- name: m\n", `models[1].name: "m" is defined twice`},
		{"- name: m\n", "- {name: o, context: 64, profile: p}\n- name: m\n", `models[0]: no replica that is not draining serves "o"`},
		{"- name: m\n", "- {name: o, context: 64, profile: p}\n- name: m\n", "models[0].hosts: with several models"},
		{validFleet, "models: []", "models: name at least one model"},
		{validFleet, "models: []", "replicas: name at least one replica"},
		{validFleet, "", "models: name at least one model"},
		{validFleet, "{", "[1:1]"},
	} {
		text := strings.Replace(validFleet, c.old, c.new, 1)
		if text == validFleet {
			t.Fatalf("%q is not in the good file", c.old)
		}
		_, err := Read(strings.NewReader(text))
		if err == nil {
			t.Errorf("%q → %q: accepted", c.old, c.new)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q → %q:\n got %v\nwant %s", c.old, c.new, err, c.want)
		}
	}
}

// TestExampleIsValid reads the example twice: as it is, and with every optional
// line switched on.
func TestExampleIsValid(t *testing.T) {
	plain, err := Read(strings.NewReader(Example))
	if err != nil {
		t.Fatal(err)
	}
	on := regexp.MustCompile(`(?m)^(\s*)# (\s*[a-z_]+:)`).ReplaceAllString(Example, "$1$2")
	all, err := Read(strings.NewReader(on))
	if err != nil {
		t.Fatalf("with every option on: %v\n%s", err, on)
	}
	if all.TLS.Cert == "" {
		t.Fatal("the options were not switched on")
	}
	if !all.Policies.ModulesEnabled() || plain.Policies.ModulesEnabled() || all.Policies.Gates.Shadow.Calls == 0 || len(all.Policies.Limits) == 0 {
		t.Errorf("the policies were not switched on: %+v", all.Policies)
	}
	if all.Preset != plain.Preset || all.Planner != plain.Planner || all.Migration != plain.Migration || all.Speed != plain.Speed {
		t.Errorf("the example shows other defaults than the code has: %+v, %+v; %+v, %+v", all.Planner, plain.Planner, all.Migration, plain.Migration)
	}
}

// TestPresetMigrationDefaults: each preset has its own defaults, and the file
// overrides them.
func TestPresetMigrationDefaults(t *testing.T) {
	fleet := func(preset, more string) Migration {
		t.Helper()
		text := "preset: " + preset + validFleet[strings.Index(validFleet, "\n"):]
		f, err := Read(strings.NewReader(text[:strings.Index(text, "migration:")] + more))
		if err != nil {
			t.Fatal(err)
		}
		return f.Migration
	}
	for _, c := range []struct {
		preset, more string
		want         Migration
	}{
		{"default", "", Migration{"live", 400, 0, 4}},
		{"paper", "", Migration{"live", 400, 0, 3}},
		{"round-robin", "", Migration{"off", 400, 0, 4}},
		{"round-robin", "migration: {mode: live}", Migration{"live", 400, 0, 4}},
		{"paper", "migration: {max_concurrent: 1, link_gbps: 100}", Migration{"live", 100, 0, 1}},
	} {
		if got := fleet(c.preset, c.more); got != c.want {
			t.Errorf("%s, %q: %+v, want %+v", c.preset, c.more, got, c.want)
		}
	}
}

func TestLoadErrorNamesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	if err := os.WriteFile(path, []byte("speed: -1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error without the path: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(validFleet)
	f.Add("models: [{name: a}]")
	f.Fuzz(func(t *testing.T, text string) {
		fleet, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		if errs := fleet.Validate(); len(errs) > 0 {
			t.Fatalf("accepted, then refused: %v", errs[0])
		}
	})
}

// Replicas of one model may differ where all of them say what they hold, and
// adapters may be loaded on some of them.
func TestHeterogeneousReplicas(t *testing.T) {
	stated := strings.NewReplacer("host: n1\n  tp: 2", "host: n1\n  tp: 4\n  kv_tokens: 9000\n  batch: 16").Replace(validFleet)
	stated = strings.Replace(stated, "  tp: 2\n", "  tp: 2\n  kv_tokens: 5000\n  batch: 8\n", 1)
	stated = strings.Replace(stated, "hosts: [m.example]", "hosts: [m.example]\n  adapters: [{name: sql, replicas: [r1]}, {name: all}]", 1)
	f, err := Read(strings.NewReader(stated))
	if err != nil {
		t.Fatal(err)
	}
	if a, b := f.AdaptersOf(f.Replicas[0]), f.AdaptersOf(f.Replicas[1]); !slices.Equal(a, []string{"all"}) || !slices.Equal(b, []string{"sql", "all"}) {
		t.Errorf("adapters: %q and %q", a, b)
	}
}
