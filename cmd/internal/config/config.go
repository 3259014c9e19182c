// Package config reads the fleet file: the one YAML file that describes a
// fleet to every daemon and command.
//
// [Load] and [Read] decode a file strictly, fill in the defaults and validate
// it; every error names the line and the field. The comments of the structs are
// the manual of the format: [Fields] renders them, and "cascade config explain"
// prints what it returns.
//
// Invariant: a file that Read accepts starts a fleet.
//
// The package configures no component: package wiring translates a Fleet into
// the Config of each component, so that no component depends on the format.
package config

import (
	_ "embed"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
)

// Example is a fleet file that shows every field; "cascade config explain --example"
// prints it.
//
//go:embed example.yaml
var Example string

// Fleet is the whole fleet file. Durations are written like 10s or 500ms,
// addresses as host:port, and paths are relative to the file. ${NAME} in a value
// stands for the environment variable NAME, which must begin with CASCADE_, POD_ or NODE_. Unknown
// fields are rejected.
type Fleet struct {
	// Preset selects the built-in policies: "default" (the fewest stages within 1 % of the least cost, on flow
	// counters), "paper" (the published system: its two-phase planner on the requests
	// of each period, every new proposal adopted, adjacent stages on one host,
	// boundaries refined, and its migration market) or "round-robin" (always one
	// stage; the baseline). Fields whose default depends on it can be set one by one.
	Preset string `yaml:"preset,omitempty"`
	// Speed makes emulated engines run this many times faster than real ones;
	// planner periods and predicted times shrink with it. Real engines need 1. At
	// most 1000.
	Speed float64 `yaml:"speed,omitempty" unit:"times real time"`
	// State is where the plan, the flow counters and pushed modules are kept across restarts: a directory, for
	// control planes on one host; etcd://HOST:2379,HOST:2379/PREFIX, with a prefix that no other fleet has; or,
	// for Pods with "cascade-kube control", kubernetes://NAMESPACE/NAME. Without it they are kept in memory, and a
	// restart begins with one stage. Do not use a directory on a network file system.
	State string `yaml:"state,omitempty"`
	// Etcd configures the connection to etcd, where state names it.
	Etcd Etcd `yaml:"etcd,omitempty"`
	// Models are the served models.
	Models []Model `yaml:"models"`
	// Replicas are the engines and their migrators.
	Replicas []Replica `yaml:"replicas"`
	// Control configures the control plane.
	Control Control `yaml:"control,omitempty"`
	// Proxy configures the data plane.
	Proxy Proxy `yaml:"proxy,omitempty"`
	// Planner configures how stages are planned.
	Planner Planner `yaml:"planner,omitempty"`
	// Migration configures how running requests migrate between replicas.
	Migration Migration `yaml:"migration,omitempty"`
	// Overload configures which requests are refused when the fleet has too many.
	Overload Overload `yaml:"overload,omitempty"`
	// RDMA configures how KV blocks travel by RDMA, on hosts that have RDMA
	// devices.
	RDMA RDMA `yaml:"rdma,omitempty"`
	// Topology lists files that describe hosts: what "cascade devices --json" prints, or {"machines": [...]} of
	// several. Replicas on such a host report its links in place of those that they find. At most 64 files.
	Topology []string `yaml:"topology,omitempty"`
	// Policies configures policies that are WebAssembly modules.
	Policies Policies `yaml:"policies,omitempty"`
	// TLS configures mutual TLS between Cascade's components. It is required for
	// addresses off loopback.
	TLS TLS `yaml:"tls,omitempty"`
}

// The values of Fleet.Preset.
const (
	PresetDefault    = "default"
	PresetPaper      = "paper"
	PresetRoundRobin = "round-robin"
)

// Model is one served model.
type Model struct {
	// Name is what clients put into "model". 1 to 256 bytes, unique.
	Name string `yaml:"name"`
	// Context is the model's longest sequence, prompt and output together: 16 to
	// 2^31.
	Context policies.Tokens `yaml:"context" unit:"tokens"`
	// Hosts are host names whose requests all ask for this model: for them the
	// length comes from content-length without reading the body. The only model of
	// a fleet owns every host.
	Hosts []string `yaml:"hosts,omitempty"`
	// Profile is the engine's cost profile: the name of a built-in one ("cascade
	// profile" lists them) or a JSON file, such as "cascade profile fit" writes.
	Profile string `yaml:"profile"`
	// KVTokens is the KV capacity of a replica. Where the engine reports its own, the
	// smaller of the two counts, and a difference is the fault "capacity".
	KVTokens policies.Tokens `yaml:"kv_tokens,omitempty" unit:"tokens" default:"the engine's, or else the profile's"`
	// Batch overrides the profile's limit of sequences that a replica runs at once.
	Batch int `yaml:"batch,omitempty" unit:"sequences" default:"the profile's"`
	// History is a file of earlier requests, in one of the formats of "cascade replay --trace", from which the
	// first plan is made. Of requests without times, as many are assumed as keep the replicas half busy. Without
	// it a fleet without state begins with one stage, and so it does if planner.adopt would merge the stages: with
	// "if-needed", if one stage is within its limits; with "gain", if stages would save less than a tenth of the
	// requests in the system.
	History string `yaml:"history,omitempty"`
	// Adapters are LoRA adapters of the model. Clients ask for one by putting its
	// name into "model"; lengths, stages and costs are the model's.
	Adapters []Adapter `yaml:"adapters,omitempty"`
}

// Adapter is one LoRA adapter of a model.
type Adapter struct {
	// Name is what clients put into "model": 1 to 256 bytes, different from every
	// model and every other adapter.
	Name string `yaml:"name"`
	// Replicas are the ids of the replicas whose engines have the adapter loaded;
	// its requests are placed, migrated and rescued among these only.
	Replicas []string `yaml:"replicas,omitempty" default:"all replicas of the model"`
}

// Replica is one engine and the migrator in front of it.
type Replica struct {
	// ID is the replica's name, unique in the fleet. 1 to 128 bytes.
	ID string `yaml:"id"`
	// Model names an entry of models. It is required where the fleet has several.
	Model string `yaml:"model,omitempty" default:"the only model"`
	// Address is where the migrator serves clients (the address in EDS). Its host may be a
	// name: control planes look it up every 5 s and publish one IP address, the same as long
	// as the answers have it. If a look-up fails, the last address stays, and status says so.
	Address string `yaml:"address"`
	// Peer is where other migrators reach this one. In a fleet with control.socket, on Linux, it names an abstract Unix
	// socket, @cascade-peer/ and the address. Each side then checks the other's user: root, its own user, or one of
	// control.socket_users.
	Peer string `yaml:"peer"`
	// Admin serves the migrator's /metrics, /healthz and /readyz and, to its own
	// host, the calls that its policies recorded: in plain text on loopback, and
	// elsewhere, which needs tls, to clients with a certificate, with
	// tls.trust_domain that of an operator.
	Admin string `yaml:"admin,omitempty"`
	// Engine is the base URL of the engine, on loopback, for instance
	// http://127.0.0.1:8000.
	Engine string `yaml:"engine"`
	// Blocks is the directory of the Unix socket kv.sock with which the engine shows its block table (engine/api). Only
	// the engine's user may have access to it. Without it the engine has no block table, and its requests migrate
	// by re-prompting.
	Blocks string `yaml:"blocks,omitempty"`
	// Connector is the directory of the Unix socket kv.sock with which an engine hands KV over to its migrator (a
	// CascadeConnector, such as deploy/vllm/cascade_connector.py). Only the engine's user may have access to it.
	// It excludes blocks.
	Connector string `yaml:"connector,omitempty"`
	// KVEvents says where the engine publishes which prompts it has cached (vLLM's
	// --kv-events-config). Without it the migrator knows of the prompts that the engine has
	// computed, and not what the engine has evicted.
	KVEvents KVEvents `yaml:"kv_events,omitempty"`
	// Host is the name of the host that the replica runs on, for locality.
	Host string `yaml:"host,omitempty"`
	// GPU is the index of the GPU that holds the engine's KV cache, in nvidia-smi's
	// order; of several ranks, the first one's. Without it "cascade devices" takes
	// the cache to be in host memory.
	GPU *int `yaml:"gpu,omitempty"`
	// RDMA selects the RDMA device by which the replica's KV blocks travel: its name, as "cascade devices" lists it;
	// with ":PORT" behind it another port than the first active one; and with "@ADDRESS" behind that the IP address of
	// the port to use where the port has several, in VLANs or of both families.
	RDMA RDMAPort `yaml:"rdma,omitempty" default:"the nearest to the KV cache, by a routable address, IPv4 before IPv6"`
	// TP is the number of tensor-parallel ranks behind the engine, 1 to 64.
	TP int `yaml:"tp,omitempty" unit:"ranks"`
	// Profile is the engine's cost profile where it differs from the model's.
	Profile string `yaml:"profile,omitempty" default:"the model's"`
	// KVTokens is the KV capacity of the engine, all ranks together; where the engine reports its own, the smaller
	// of the two counts. Where the replicas of a model differ in profile or tp, all of them must set kv_tokens and
	// batch: the planner counts each as the smallest, and new requests are distributed by capacity.
	KVTokens policies.Tokens `yaml:"kv_tokens,omitempty" unit:"tokens" default:"the engine's, or else the profile's"`
	// Batch is the number of sequences that the engine runs at once; see kv_tokens.
	Batch int `yaml:"batch,omitempty" unit:"sequences" default:"the profile's"`
	// Role "prefill" makes the replica compute long prompts for the others: it is in no stage, and with its first
	// token a request moves to the replica of its stage, KV included. migration.mode must be live, and each model
	// needs a replica without this role.
	Role string `yaml:"role,omitempty" default:"none: it prefills and decodes"`
	// Drain takes the replica out of its stage: it gets no new request, and running
	// ones migrate or end there.
	Drain bool `yaml:"drain,omitempty"`
}

// RolePrefill is a value of Replica.Role.
const RolePrefill = "prefill"

// Control configures the control plane.
type Control struct {
	// Listen serves xDS, load reports and the length service (gRPC).
	Listen string `yaml:"listen,omitempty"`
	// Socket is the absolute path of a Unix socket that serves the same to the fleet's own migrators and proxies
	// on this host, and checks their users (control.socket_users). Clients of listen, which is plain text to every
	// user of the host, can then no longer report loads or answer for a proxy of proxy.nodes. Its folder, which is
	// created, must be writable for the control plane's user alone. It is for fleets without tls, with one control
	// plane. Without it, all users of the host are trusted.
	Socket string `yaml:"socket,omitempty" default:"/run/cascade/control.sock with admin_users but without tls and peers, else none"`
	// SocketUsers are the users, by name or number, that may connect to socket besides root and the control plane's own.
	SocketUsers []string `yaml:"socket_users,omitempty"`
	// Admin serves /status, /metrics, /healthz and /readyz, on loopback.
	Admin string `yaml:"admin,omitempty"`
	// AdminHosts are host names that requests to the admin servers on loopback may carry besides those of
	// loopback, in lower case and without a port: the names of a proxy of your own in front of them.
	AdminHosts []string `yaml:"admin_hosts,omitempty"`
	// ConsoleTokenFile contains a secret of 16 bytes or more, and lets the console give orders to those who type
	// it there and whom admin_users admits. Only its owner may write the file, and only its owner and group may
	// read it. "" leaves the console read-only.
	ConsoleTokenFile string `yaml:"console_token_file,omitempty"`
	// AdminUsers are the users of the host, by name or number, that may give orders
	// through admin, such as "cascade drain", besides root; "*" stands for all. Name
	// the user of a proxy of your own in front of it.
	AdminUsers []string `yaml:"admin_users,omitempty" default:"the control plane's own user"`
	// Name is the name of the control plane at listen, among several. Those that
	// are started with a --listen of their own have a --name of their own or this
	// default.
	Name string `yaml:"name,omitempty" default:"its host and the port of listen"`
	// Peers are the addresses, IP:port, of the other control planes of this fleet, which share state: one plans,
	// all serve the same resources, and any of them may fail. The file is the same for all; each is started with
	// its own --listen and --admin.
	Peers []string `yaml:"peers,omitempty"`
	// AnyRemoval applies a changed file at once even if it removes more than half of
	// a model's replicas. Otherwise such a file waits for "cascade config check --confirm".
	AnyRemoval bool `yaml:"any_removal,omitempty"`
	// Estimator finds a request's length in front of Envoy: "content-length" (no callout), "ext_proc" (the length
	// service), or inside Envoy the WebAssembly module in a file whose name ends in .wasm. "make estimator" builds
	// one; it is read at start. Several models on one host need one of the latter two.
	Estimator string `yaml:"estimator,omitempty" default:"ext_proc for several models, else content-length"`
	// XDSCluster is the name that Envoys of other owners give the cluster of this
	// control plane; see "cascade attach". Two fleets that are attached to one
	// Envoy need different names, and a change of the name gives that Envoy new
	// clusters.
	XDSCluster string `yaml:"xds_cluster,omitempty"`
	// Limits bound the resources that one proxy may use.
	Limits ProxyLimits `yaml:"limits,omitempty"`
	// Groups are groups of proxies, in the order in which they get a new plan;
	// proxies in no group get it last.
	Groups []Group `yaml:"groups,omitempty" default:"one proxy in eight, then all others"`
	// Audit is a file to which the control plane appends a line of JSON for each order, plan and promotion, and
	// for each refusal: when, who, from where, what, and the outcome with its reason. Its folder must exist;
	// several control planes may share one file on a local disk. To rotate it, rename it. A disk that is full or
	// hangs delays nothing; records that were lost are counted, and are the fault "audit". "" records nothing.
	Audit string `yaml:"audit,omitempty"`
	// Soak is how long a new plan is observed in one group before the next group gets it, up to 1h; it is divided
	// by speed. The plan does not wait where the plan in force has a stage without a healthy replica.
	Soak time.Duration `yaml:"soak,omitempty"`
}

// Proxy configures the data plane.
type Proxy struct {
	// Listen is where clients connect: the address of the listener that the control
	// plane publishes.
	Listen string `yaml:"listen,omitempty"`
	// Admin serves the embedded proxy's /metrics, /healthz and /readyz, as
	// replicas.admin does.
	Admin string `yaml:"admin,omitempty"`
	// Nodes are the node ids of the fleet's own proxies, as patterns: * matches any characters but "/". A new plan
	// waits until they have acknowledged it, and stops if one refuses it. With tls.trust_domain every proxy that
	// has a certificate counts as listed. What other clients refuse or report changes nothing.
	Nodes []string `yaml:"nodes,omitempty" default:"without tls.trust_domain: proxy@HOST and envoy@HOST"`
	// BodyLimit is the size of the largest body, 1 to 64; a larger one is refused with 413. Proxies keep as much of
	// a request to find its length and to repeat it at another replica. A migrator's front end has memory for 16
	// such bodies from clients and as many from other replicas, an embedded proxy for 32; Envoys are bounded by
	// their own overload manager.
	BodyLimit BodyLimit `yaml:"body_limit,omitempty" default:"16" unit:"MiB"`
	// Origins are the web origins whose pages may call the fleet from browsers (CORS), such as https://app.example:
	// at most 64. Pages of other origins get 403. "*" alone admits all, without credentials. Without origins,
	// answers of engines say themselves which pages may read them.
	Origins []string `yaml:"origins,omitempty"`
	// AccessLog is the absolute path of a file, such as /dev/stdout, to which every Envoy and embedded proxy
	// writes a line of JSON for each request: its id (x-request-id), stage, replica, status and duration. ""
	// writes none. An Envoy of yours writes the log of its own configuration.
	AccessLog string `yaml:"access_log,omitempty"`
	// TraceCollector is the IP:port of an OpenTelemetry collector (OTLP over gRPC) that Envoys export spans of
	// requests to. They begin the traces that migrators continue. "" traces nothing there. An Envoy of yours
	// traces by its own configuration.
	TraceCollector string `yaml:"trace_collector,omitempty"`
	// TraceShare is the share of requests whose traces Envoys begin, in (0, 1].
	TraceShare float64 `yaml:"trace_share,omitempty" default:"0.01"`
	// TLS makes the listener serve HTTPS; without it clients connect in plain text. The control plane sends the
	// certificate to listed Envoys that prove who they are (SDS), so it needs proxy.nodes and tls.trust_domain;
	// "cascade proxy" reads it itself. A renewed one takes effect within 10 s.
	TLS DownstreamTLS `yaml:"tls,omitempty"`
}

// DownstreamTLS names the PEM files of the certificate that clients see.
type DownstreamTLS struct {
	// Cert is the certificate chain, the leaf first.
	Cert string `yaml:"cert,omitempty"`
	// Key is the private key of the leaf.
	Key string `yaml:"key,omitempty"`
}

// KeepFirstPlan is a value of Planner.MinRequests that is never reached: the fleet keeps its first
// plan, which is one stage unless the model has a History.
const KeepFirstPlan = 1 << 40

// Planner configures planning. The defaults are right for most fleets.
type Planner struct {
	// Period is the time between two plans; it is divided by speed. With preset paper
	// a plan is made from the requests of one period.
	Period time.Duration `yaml:"period,omitempty" default:"10s; 1m0s for preset paper"`
	// Window is the time constant with which the flow counters forget; it is
	// divided by speed. Fleets with few requests per second need a longer one.
	Window time.Duration `yaml:"window,omitempty" default:"45s; the period for preset paper"`
	// Iteration bounds the predicted iteration time of each stage of a new plan: a ratio to that of one stage, 1 to
	// 100, or a time at speed 1, such as 60ms, beside the default ratio. A lower one is fairer to the longest
	// requests, a higher one faster for the others; 1 allows only stages that slow no request down.
	Iteration IterationBound `yaml:"iteration,omitempty" default:"1.5; 100 for preset paper"`
	// StageReplicas is the least number of replicas in each stage of a new plan, 1 to 64. With 2 a stage outlives
	// one of them without the help of the next stage. Where the replicas are too few there are fewer stages. Preset
	// paper has none.
	StageReplicas int `yaml:"stage_replicas,omitempty" unit:"replicas" default:"1"`
	// MinRequests is how many requests must be counted before the planner replaces the first plan. Tests and
	// comparisons set it.
	MinRequests uint64 `yaml:"-"`
	// Adopt says when the planner divides the replicas into stages: "if-needed", only when one stage would be over its
	// limits: memory, or an iteration that is given as a time; "gain", also if stages save a fifth by prediction, and a
	// tenth to stay; or "always". The prediction is for requests that are placed without regard to their lengths. Front
	// ends place them by price, and reach most of it in one stage. A policy of kind partition needs "gain" or "always".
	Adopt string `yaml:"adopt,omitempty" default:"if-needed; gain with migration.mode off, always for preset paper"`
	// Utilisation is the share of what the replicas can serve, 0.01 to 1, that the demand may be in the
	// recommended number of replicas (cascade_desired_replicas). A lower one leaves more room for what comes while
	// replicas start. Fewer are recommended only after they have been enough for 10m, divided by speed.
	Utilisation float64 `yaml:"utilisation,omitempty" unit:"share" default:"0.75"`
}

// The values of Planner.Adopt.
const (
	AdoptIfNeeded = string(adoption.IfNeeded)
	AdoptGain     = string(adoption.ByGain)
	AdoptAlways   = string(adoption.Always)
)

// TLS names the PEM files for mutual TLS between Cascade's components, requests
// from proxies to migrators included. Without them all connections are plain text,
// which is allowed on loopback only. The files are read again every 10 s, so that
// certificates rotate without a restart.
type TLS struct {
	// Cert is the certificate chain. With a trust domain, {role} and {name} in cert and key stand for the
	// component that reads them, so that one fleet file serves all: control, migrator or proxy, and the replica's
	// id, the node id or control.name ("control" for an only one without a name).
	Cert string `yaml:"cert,omitempty"`
	// Key is the private key of cert.
	Key string `yaml:"key,omitempty"`
	// CA holds the certificates of the authorities that peers must chain to.
	CA string `yaml:"ca,omitempty"`
	// TrustDomain gives every component an identity: its certificate has one URI name, spiffe://<trust
	// domain>/<role>/<name>, and a connection to a component with another identity fails. Without it, clients need
	// a certificate of the authority, and servers one that also carries the dialled host.
	TrustDomain string `yaml:"trust_domain,omitempty"`
	// EnvoyDir is the absolute path of the directory, on the host of each Envoy, into which "cascade envoy-bootstrap
	// --out" writes its files. Through two of them Envoy reads the certificate that it presents to migrators.
	EnvoyDir string `yaml:"envoy_dir,omitempty"`
	// Plaintext lists what may travel unencrypted between hosts, where something else protects it, such as the
	// sidecars of a mesh. "cascade status" shows what is allowed.
	//   - clients: clients connect to proxy.listen in plain text, off loopback without proxy.tls;
	//   - requests: migrators serve proxies in plain text, and everyone who reaches their address, and proxies
	//     connect so. Proxies that have no certificate of the fleet need it, such as a mesh's, and gRPC clients;
	//   - rdma: KV blocks, from which prompts can be computed, travel by RDMA in a fleet with certificates. Without
	//     it, or where the fabric is broken, they travel by TCP under TLS between hosts;
	//   - traces: Envoys export spans to a proxy.trace_collector off loopback.
	Plaintext []string `yaml:"plaintext,omitempty"`
}

// What tls.plaintext may allow to travel unencrypted.
const (
	PlaintextClients  = "clients"
	PlaintextRequests = "requests"
	PlaintextRDMA     = "rdma"
	PlaintextTraces   = "traces"
)
