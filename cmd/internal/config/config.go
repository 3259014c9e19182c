// Package config is the one YAML file of a fleet: its structs are the manual
// of the format, Read decodes strictly, and every error names the line and
// the field.
//
// It is not the configuration of any component: the commands translate it
// into each component's own Config. A file that Read accepts starts a fleet.
package config

import (
	_ "embed"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// Example is a fleet file that shows every field; "cascade config example"
// prints it.
//
//go:embed example.yaml
var Example string

// Fleet is the whole file. Durations are written like 10s or 500ms, lengths in
// tokens, addresses as host:port. Unknown fields are refused.
type Fleet struct {
	// Preset chooses the policies: "default" (exact planner on flow counters),
	// "paper" (the paper's two-phase planner on snapshots) or "round-robin"
	// (always one stage; the baseline). Empty means "default".
	Preset string `yaml:"preset,omitempty"`
	// Speed makes emulated engines run this many times faster than real ones;
	// planner periods and predicted times shrink with it. Real engines need 1.
	// 0 means 1; at most 1000.
	Speed float64 `yaml:"speed,omitempty"`
	// State is the directory that keeps the plan and the flow counters across
	// restarts. Empty keeps them in memory: a restart begins with one stage.
	State    string    `yaml:"state,omitempty"`
	Models   []Model   `yaml:"models"`
	Replicas []Replica `yaml:"replicas"`
	Control  Control   `yaml:"control,omitempty"`
	Proxy    Proxy     `yaml:"proxy,omitempty"`
	Planner  Planner   `yaml:"planner,omitempty"`
	// Migration says how running requests move between replicas.
	Migration Migration `yaml:"migration,omitempty"`
	// CUDA says how GPUs copy blocks, where nodes have them.
	CUDA CUDA `yaml:"cuda,omitempty"`
	// RDMA says how blocks travel by RDMA, where nodes have it.
	RDMA RDMA `yaml:"rdma,omitempty"`
	// Topology names files with machines, relative to this file: what "cascade devices
	// --json" prints, or {"machines": [...]} of the same. Replicas on a node that is
	// named there tell of that machine instead of the one that they run on; replicas
	// of emulated engines tell of nothing else. At most 64 files.
	Topology []string `yaml:"topology,omitempty"`
	// Policies says whose modules in WebAssembly may decide.
	Policies Policies `yaml:"policies,omitempty"`
	TLS      TLS      `yaml:"tls,omitempty"`
}

// Model is one served model.
type Model struct {
	// Name is what clients put into "model". 1 to 256 bytes, unique.
	Name string `yaml:"name"`
	// Context is the model's longest sequence, prompt and output together, in
	// tokens: 16 to 2^31.
	Context policies.Tokens `yaml:"context"`
	// Hosts are host names whose requests all ask for this model; there the
	// length comes from content-length without reading the body. A model that
	// is alone in its fleet owns every host.
	Hosts []string `yaml:"hosts,omitempty"`
	// Profile names the engine's cost profile: a built-in one ("cascade profiles"
	// lists them) or a JSON file, relative to this file.
	Profile string `yaml:"profile"`
	// BytesPerToken is the first guess of prompt bytes per token, 0.5 to 16; it
	// is learnt from exact counts once requests finish. 0 means 4.
	BytesPerToken float64 `yaml:"bytes_per_token,omitempty"`
	// KVTokens and Batch override the profile's capacity. 0 keeps it.
	KVTokens policies.Tokens `yaml:"kv_tokens,omitempty"`
	Batch    int             `yaml:"batch,omitempty"`
	// Adapters are LoRA adapters of the model. Clients ask for one by its name in
	// "model"; lengths, stages and costs are the model's.
	Adapters []Adapter `yaml:"adapters,omitempty"`
}

// Adapter is one LoRA adapter of a model.
type Adapter struct {
	// Name is what clients put into "model": 1 to 256 bytes, no model's and no other
	// adapter's.
	Name string `yaml:"name"`
	// Replicas are the ids of those whose engines have it loaded; its requests
	// begin, move and are rescued among these only. Empty: all of the model's.
	Replicas []string `yaml:"replicas,omitempty"`
}

// Replica is one engine and the migrator before it.
type Replica struct {
	ID string `yaml:"id"` // unique in the fleet
	// Model names an entry of models; empty where the fleet has one model.
	Model string `yaml:"model,omitempty"`
	// Address is where the migrator serves clients (the address in EDS).
	Address string `yaml:"address"`
	// Peer is where other migrators reach this one.
	Peer string `yaml:"peer"`
	// Admin serves the migrator's /metrics, /healthz and /readyz, and to its own
	// machine the calls that its policies recorded. Empty: nowhere.
	Admin string `yaml:"admin,omitempty"`
	// Engine is the base URL of the engine, on loopback: http://127.0.0.1:8000.
	Engine string `yaml:"engine"`
	// Blocks is the directory of the Unix sockets with which the engine shows its
	// block table (engine/api), relative to this file. Only the engine's user
	// may be able to enter it. Empty: the engine has none, and its requests move
	// by re-prompting. Engines that "up" emulates get directories by themselves.
	Blocks string `yaml:"blocks,omitempty"`
	// Node names the machine, for locality. Empty means "local".
	Node string `yaml:"node,omitempty"`
	// GPU is the index of the GPU that holds the engine's KV cache, as nvidia-smi
	// counts them on the node; of several ranks the first one's. Empty: none, or it
	// is not known: "cascade devices" then takes the cache to be in host memory.
	GPU *int `yaml:"gpu,omitempty"`
	// RDMA names the RDMA device of the replica's node by which its blocks travel.
	RDMA RDMADevice `yaml:"rdma,omitempty"`
	// TP is the number of tensor-parallel ranks behind the engine. 0 means 1.
	TP int `yaml:"tp,omitempty"`
	// Profile is the engine's cost profile where it is not the model's.
	Profile string `yaml:"profile,omitempty"`
	// KVTokens and Batch state what the engine holds, all ranks together; 0 keeps
	// the profile's. Where the replicas of a model differ in profile or tp, all of
	// them must state both: the planner counts each as the smallest, prices it by
	// the model's own profile at the smallest tp, and shares out new requests by
	// what each holds.
	KVTokens policies.Tokens `yaml:"kv_tokens,omitempty"`
	Batch    int             `yaml:"batch,omitempty"`
	// Drain takes the replica out of its stage: no new request, running ones move away or end.
	Drain bool `yaml:"drain,omitempty"`
}

// Control is the control plane.
type Control struct {
	// Listen serves xDS, load reports and the length service (gRPC). Empty
	// means 127.0.0.1:18000.
	Listen string `yaml:"listen,omitempty"`
	// Admin serves /status, /metrics, /healthz and /readyz. Empty means 127.0.0.1:18001.
	Admin string `yaml:"admin,omitempty"`
	// AdminHosts are names by which Admin may be asked besides those of loopback, in
	// lower case and without a port: of a proxy of your own in front of it.
	AdminHosts []string `yaml:"hosts,omitempty"`
	// Name is that of the control plane at Listen, among several. Empty means its
	// host and the port of Listen; those that are started with a --listen of their
	// own have a --name of their own or that.
	Name string `yaml:"name,omitempty"`
	// Peers are the addresses, IP:port, of the other control planes of this fleet.
	// They share the State directory: one plans, all serve the same, and any of
	// them may die. Migrators report to all, proxies go to the next one while one
	// is away. The file is the same for all; each is started with its own --listen
	// and --admin.
	Peers []string `yaml:"peers,omitempty"`
	// Estimator finds a request's length in front of Envoy: "content-length"
	// (no callout), "ext_proc" (the length service) or "wasm" (Module, inside
	// Envoy). Several models on one host need one of the latter two. Empty means
	// "wasm" with a Module, else "ext_proc" for several models, else
	// "content-length".
	Estimator string `yaml:"estimator,omitempty"`
	// Module is the file of the module that Envoys get for estimator "wasm";
	// "make estimator" builds one. It is read at start.
	Module string `yaml:"module,omitempty"`
	// XDSCluster is the name that Envoys of other owners have for the cluster of
	// this control plane; see "cascade attach". Changing it gives them new
	// clusters. Empty means "cascade-xds".
	XDSCluster string `yaml:"xds_cluster,omitempty"`
	// Limits bound what one proxy may ask for.
	Limits ProxyLimits `yaml:"limits,omitempty"`
	// Groups are the groups of proxies in the order in which a new plan comes to
	// them; who is in none comes last. Empty: one proxy in eight comes first.
	Groups []Group `yaml:"groups,omitempty"`
	// Soak is how long a new plan is on trial in one group before the next one
	// gets it; nobody waits where only one group has proxies, or where the plan in
	// force has a stage that nobody serves. It shrinks with Speed. 0 means 2s; at
	// most 1h.
	Soak time.Duration `yaml:"watch,omitempty"`
}

// Proxy is the data plane's door.
type Proxy struct {
	// Listen is where clients connect; it is the address of the listener that
	// the control plane publishes. Empty means 127.0.0.1:8080.
	Listen string `yaml:"listen,omitempty"`
	// Admin serves the embedded proxy's /metrics, /healthz and /readyz. Empty: nowhere.
	Admin string `yaml:"admin,omitempty"`
	// TLS has clients speak TLS to the listener. Empty: plain text. The control
	// plane sends the certificate to the Envoys (SDS), and "cascade proxy" reads
	// it itself; a renewed one is taken up within 10 s, without a restart.
	TLS DownstreamTLS `yaml:"tls,omitempty"`
}

// DownstreamTLS names the PEM files of the certificate that clients are shown, relative
// to the fleet file.
type DownstreamTLS struct {
	Cert string `yaml:"cert,omitempty"` // certificate chain, the own one first
	Key  string `yaml:"key,omitempty"`  // private key
}

// Planner tunes planning. The zero value is right for most fleets.
type Planner struct {
	// Period between plans; 0 means 10s. Divided by Speed.
	Period time.Duration `yaml:"period,omitempty"`
	// Window is the time constant of the flow counters; 0 means 45s. Divided by Speed.
	Window time.Duration `yaml:"window,omitempty"`
	// Stages is the most stages of a plan, 1 to 8; 0 means 8.
	Stages int `yaml:"stages,omitempty"`
	// Iteration bounds every stage's predicted iteration time at Speed 1:
	// fairness to the longest requests, paid for by the others. 0 means none.
	Iteration time.Duration `yaml:"iteration,omitempty"`
	// Pooling is β in k ≥ u + β·√u: the head room that u replicas' worth of
	// work needs against bursts, up to 4. 0 means 0.3; −1 means none.
	Pooling float64 `yaml:"pooling,omitempty"`
	// MinRequests is how many requests must be counted before the first stages; 0 means 1000.
	MinRequests uint64 `yaml:"seen,omitempty"`
	// Refine is "on" when boundaries also move between two plans, every second, as
	// the replicas themselves propose; with plans every Period that rarely gains
	// anything. The next plan is weighed against the boundaries as they are then;
	// that a plan is slower than predicted is found only while its boundaries rest,
	// for four periods. Policies of kind refine decide only with "on". Empty means
	// "off"; for preset "paper", "on".
	Refine string `yaml:"refine,omitempty"`
}

// The values of Planner.Refine.
const (
	RefineOn  = "on"
	RefineOff = "off"
)

// TLS names PEM files for mutual TLS between Cascade's components. All empty:
// plaintext, allowed on loopback only. Files are read again every 10 s, so that
// certificates rotate without a restart.
type TLS struct {
	// Cert is the certificate chain, Key its private key. With a trust domain
	// {role} and {name} in these paths stand for the component that reads them, so
	// that one fleet file serves all: control, migrator or proxy, and its name
	// there: for migrators the replica's id, for proxies the node id, for control
	// planes control.name or what stands for it, and "control" for one that is
	// alone and has none.
	Cert string `yaml:"cert,omitempty"`
	Key  string `yaml:"key,omitempty"`
	CA   string `yaml:"ca,omitempty"` // authorities of the peers
	// TrustDomain gives every component an identity: its certificate has one URI
	// name, spiffe://<trust domain>/<role>/<name>, and nobody is believed to be
	// anybody else. Then certificates need no host names. Empty: a certificate of
	// the authority is enough, for clients, and one for the dialled host, for
	// servers.
	TrustDomain string `yaml:"trust_domain,omitempty"`
}
