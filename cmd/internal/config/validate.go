package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// setDefaults writes the documented defaults into empty fields.
func (f *Fleet) setDefaults() {
	setDefault(&f.Preset, PresetDefault)
	setDefault(&f.Speed, 1)
	setDefault(&f.Control.Listen, "127.0.0.1:18000")
	setDefault(&f.Control.Admin, "127.0.0.1:18001")
	setDefault(&f.Control.XDSCluster, "cascade-xds")
	setDefault(&f.Control.Soak, 2*time.Second)
	if f.distrustsUsers() {
		setDefault(&f.Control.Socket, DefaultSocket)
	}
	setDefault(&f.Proxy.Listen, "127.0.0.1:8080")
	setDefault(&f.TLS.EnvoyDir, "/etc/envoy")
	if len(f.Models) > 1 {
		setDefault(&f.Control.Estimator, EstimatorExtProc)
	}
	setDefault(&f.Control.Estimator, EstimatorContentLength)
	f.Migration.setDefaults(f.Preset)
	f.Planner.setDefaults(f.Preset, f.Migration.Mode != MigrationOff)
	setDefault(&f.Proxy.BodyLimit, usualBodyLimit)
	f.Overload.setDefaults()
	f.Policies.setDefaults()
	canonical(&f.Control.Listen)
	for i := range f.Control.Peers {
		canonical(&f.Control.Peers[i])
	}
	for i := range f.Replicas {
		r := &f.Replicas[i]
		canonical(&r.Address)
		canonical(&r.Peer)
		canonical(&r.Admin)
		setDefault(&r.Host, "local")
		setDefault(&r.TP, 1)
		if len(f.Models) == 1 {
			setDefault(&r.Model, f.Models[0].Name)
		}
	}
}

// DefaultSocket is the default of control.socket. Only root, and the users to whom it gives the folder, can open it.
const DefaultSocket = "/run/cascade/control.sock"

// distrustsUsers reports whether only some users of this host may give orders, in a fleet whose components have no
// certificates.
func (f *Fleet) distrustsUsers() bool {
	users := f.Control.AdminUsers
	return len(users) > 0 && !slices.Contains(users, "*") && f.TLS.Cert == "" && len(f.Control.Peers) == 0
}

// Requests to count before the planner replaces the first plan: fewer say too little about lengths.
const (
	minRequests      = 1000
	minRequestsPaper = 1
)

// setDefaults writes the defaults of the preset into empty fields, for front ends that place requests or do not.
func (p *Planner) setDefaults(preset string, placed bool) {
	if preset == PresetPaper {
		setDefault(&p.Adopt, AdoptAlways)
		setDefault(&p.Period, time.Minute)
		setDefault(&p.Window, p.Period)
		setDefault(&p.MinRequests, minRequestsPaper)
	}
	if placed {
		setDefault(&p.Adopt, AdoptIfNeeded)
	}
	setDefault(&p.Adopt, AdoptGain)
	setDefault(&p.StageReplicas, 1)
	setDefault(&p.Utilisation, 0.75)
	setDefault(&p.Period, 10*time.Second)
	setDefault(&p.Window, 45*time.Second)
	setDefault(&p.MinRequests, minRequests)
	setDefault(&p.Iteration, defaultIteration(preset))
}

// canonical removes the brackets around an IPv4 address, which files have that are written for both
// families: "[${POD_IP}]:9000". Components compare addresses as texts.
func canonical(address *string) {
	host, port, err := net.SplitHostPort(*address)
	if _, bad := netip.ParseAddr(host); err == nil && bad == nil {
		*address = net.JoinHostPort(host, port)
	}
}

// setDefault sets a zero value to its default.
func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// maxStageReplicas is the largest Planner.StageReplicas.
const maxStageReplicas = 64

// maxGPU is the largest index of a GPU on a node.
const maxGPU = 1023

// maxMachineFiles is how many topology files a fleet file may name.
const maxMachineFiles = 64

// Validate fills in the defaults of a fleet that was built by a program, and
// returns an error for every invalid field.
func (f *Fleet) Validate() []*FieldError {
	f.setDefaults()
	return f.validate()
}

func (f *Fleet) validate() []*FieldError {
	c := &checker{}
	checkOneOf(c, "preset", f.Preset, PresetDefault, PresetPaper, PresetRoundRobin)
	checkRange(c, "speed", f.Speed, 0.01, 1000)
	f.validateModels(c)
	taken := listeners{make(map[string]string), make(map[string][]listener)}
	taken.claim(c, "control.listen", f.Control.Listen)
	taken.claim(c, "control.admin", f.Control.Admin)
	taken.claim(c, "proxy.listen", f.Proxy.Listen)
	taken.claim(c, "proxy.admin", f.Proxy.Admin)
	f.validateReplicas(c, taken)
	checkAddress(c, "control.listen", f.Control.Listen)
	checkAddress(c, "control.admin", f.Control.Admin)
	if isRemote(f.Control.Admin) {
		c.fail("control.admin", "%s is not loopback, and the admin server has no authentication: listen on 127.0.0.1, and reach it through a tunnel or a proxy of your own", f.Control.Admin)
	}
	f.validateSocket(c)
	f.validateState(c)
	f.validatePeers(c)
	f.Control.Limits.validate(c)
	f.Control.validateGroups(c)
	f.validateEstimator(c)
	if x := f.Control.XDSCluster; len(x) > 128 || strings.ContainsAny(x, "\x00\r\n") {
		c.fail("control.xds_cluster", "must have 1 to 128 bytes")
	}
	checkAddress(c, "proxy.listen", f.Proxy.Listen)
	checkIP(c, "proxy.listen", f.Proxy.Listen)
	f.Proxy.validateNodes(c, f.TLS.TrustDomain)
	f.Proxy.validateObservation(c)
	f.Proxy.validateOrigins(c)
	if len(f.Topology) > maxMachineFiles {
		c.fail("topology", "%d files exceed the limit of %d: put several machines into one file", len(f.Topology), maxMachineFiles)
	}
	if f.Proxy.Admin != "" {
		checkAddress(c, "proxy.admin", f.Proxy.Admin)
	}
	f.validatePlanner(c)
	f.Migration.validate(c)
	f.Proxy.BodyLimit.validate(c)
	f.Overload.validate(c)
	f.RDMA.validate(c)
	f.Policies.validate(c)
	f.validateSocketDirs(c)
	f.validateTLS(c)
	return c.errs
}

// validateNodes checks which proxies there are, and that only they can have the key of
// the downstream certificate.
func (p Proxy) validateNodes(c *checker, trustDomain string) {
	if err := resources.CheckPatterns(p.Nodes); err != nil {
		c.fail("proxy.nodes", "%v", err)
		return
	}
	if (p.TLS.Cert == "") != (p.TLS.Key == "") {
		c.fail("proxy.tls", "cert and key belong together: set both or none")
	}
	if p.TLS.Key == "" {
		return
	}
	if trustDomain == "" {
		c.fail("proxy.tls", "without tls.trust_domain every client of the control plane could get the key: set it, with tls.cert, tls.key and tls.ca (\"cascade tls\" issues some)")
	}
	if len(p.Nodes) == 0 {
		c.fail("proxy.nodes", "list the node ids of the proxies that may have the key of proxy.tls")
	}
	if err := resources.CheckSpecific(p.Nodes); err != nil {
		c.fail("proxy.nodes", "%v, because these proxies get the key of proxy.tls", err)
	}
}

// validateObservation checks where requests are logged and traced.
func (p Proxy) validateObservation(c *checker) {
	if p.AccessLog != "" && !filepath.IsAbs(p.AccessLog) {
		c.fail("proxy.access_log", "%q: must be an absolute path, for instance /dev/stdout: proxies on every host write it", p.AccessLog)
	}
	if p.TraceCollector != "" {
		checkAddress(c, "proxy.trace_collector", p.TraceCollector)
		checkIP(c, "proxy.trace_collector", p.TraceCollector)
	}
	if !(p.TraceShare >= 0 && p.TraceShare <= 1) {
		c.fail("proxy.trace_share", "%v: must be in (0, 1]", p.TraceShare)
	}
}

// validatePeers checks the names of a control plane, and what several of them
// need.
func (f *Fleet) validatePeers(c *checker) {
	if len(f.Control.Name) > 256 {
		c.fail("control.name", "must have at most 256 bytes")
	}
	for i, h := range f.Control.AdminHosts {
		if h == "" || h != strings.ToLower(h) || strings.ContainsAny(h, ":/ ") {
			c.fail(fmt.Sprintf("control.admin_hosts[%d]", i), "%q: must be a host name in lower case, without a port", h)
		}
	}
	if i := slices.Index(f.Control.AdminUsers, ""); i >= 0 {
		c.fail(fmt.Sprintf("control.admin_users[%d]", i), "must be the name or number of a user, or *")
	}
	for i, p := range f.Control.Peers {
		at := fmt.Sprintf("control.peers[%d]", i)
		checkAddress(c, at, p)
		checkIP(c, at, p)
		if slices.Contains(f.Control.Peers[:i], p) {
			c.fail(at, "%s is listed twice", p)
		}
	}
	if len(f.Control.Peers) == 0 {
		return
	}
	if f.State == "" {
		c.fail("state", "several control planes (control.peers) need a store that they share: set it to etcd://HOST:2379/PREFIX or kubernetes://NAMESPACE/NAME, or, where all run on one host, to a directory")
	}
	if f.Control.Estimator == EstimatorExtProc {
		c.fail("control.estimator", "each control plane serves ext_proc on its own address, so that several would publish different resources; use a module, or content-length with a host name for each model")
	}
}

func (f *Fleet) validateModels(c *checker) {
	if len(f.Models) == 0 {
		c.fail("models", "name at least one model")
	}
	names, hosts := map[string]bool{}, map[string]bool{}
	for i, m := range f.Models {
		at := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Name == "" || len(m.Name) > 256:
			c.fail(at+".name", "must have 1 to 256 bytes")
		case names[m.Name]:
			c.fail(at+".name", "%q is defined twice", m.Name)
		}
		names[m.Name] = true
		checkRange(c, at+".context", m.Context, 16, 1<<31)
		if m.Profile == "" {
			c.fail(at+".profile", "name a built-in profile or a JSON file")
		}
		if m.KVTokens < 0 || (m.KVTokens > 0 && m.KVTokens < m.Context) {
			c.fail(at+".kv_tokens", "%d is less than one sequence of %d tokens (context)", m.KVTokens, m.Context)
		}
		if m.Batch < 0 {
			c.fail(at+".batch", "%d is negative; leave it out for the profile's", m.Batch)
		}
		for j, h := range m.Hosts {
			if h == "" || h == "*" || hosts[h] {
				c.fail(fmt.Sprintf("%s.hosts[%d]", at, j), "%q: must be a host name that no other model has", h)
			}
			hosts[h] = true
		}
	}
}

func (f *Fleet) validateReplicas(c *checker, taken listeners) {
	if len(f.Replicas) == 0 {
		c.fail("replicas", "name at least one replica")
	}
	models, serving, decoding := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range f.Models {
		models[m.Name] = true
	}
	ids := map[string]bool{}
	listen := func(path, addr string) {
		checkAddress(c, path, addr)
		taken.claim(c, path, addr)
	}
	for i, r := range f.Replicas {
		at := fmt.Sprintf("replicas[%d]", i)
		switch {
		case r.ID == "" || len(r.ID) > 128:
			c.fail(at+".id", "must have 1 to 128 bytes")
		case ids[r.ID]:
			c.fail(at+".id", "%q is defined twice", r.ID)
		}
		ids[r.ID] = true
		if !models[r.Model] {
			if r.Model == "" {
				c.fail(at+".model", "name the replica's model: the fleet has several")
			} else {
				c.fail(at+".model", "%q is not in models", r.Model)
			}
		}
		checkOneOf(c, at+".role", r.Role, "", RolePrefill)
		if r.Role == RolePrefill && f.Migration.Mode != MigrationLive {
			c.fail(at+".role", "requests leave a prefill replica with their KV, which migration.mode %q does not move: set it to %q", f.Migration.Mode, MigrationLive)
		}
		serving[r.Model] = serving[r.Model] || !r.Drain
		decoding[r.Model] = decoding[r.Model] || !r.Drain && r.Role != RolePrefill
		listen(at+".address", r.Address)
		f.checkReplicaHost(c, at+".address", r.Address)
		listen(at+".peer", r.Peer)
		if r.Admin != "" {
			listen(at+".admin", r.Admin)
		}
		checkEngineURL(c, at+".engine", r.Engine)
		checkRange(c, at+".tp", r.TP, 1, 64)
		if r.GPU != nil {
			checkRange(c, at+".gpu", *r.GPU, 0, maxGPU)
		}
		r.RDMA.validate(c, at+".rdma")
		r.KVEvents.validate(c, at+".kv_events", taken)
	}
	// Engines are on loopback, so that replicas of different hosts may have the same URL.
	engines := make(map[[2]string]int)
	for i, r := range f.Replicas {
		at := fmt.Sprintf("replicas[%d].engine", i)
		taken.checkEngine(c, at, r.Engine)
		engine := [2]string{r.Engine, addressHost(r.Address)}
		if first, shared := engines[engine]; shared && hasFixedPort(r.Engine) {
			c.fail(at, "%s is also replicas[%d].engine; every replica needs an engine of its own", r.Engine, first)
		} else {
			engines[engine] = i
		}
	}
	for i, m := range f.Models {
		if !serving[m.Name] && len(f.Replicas) > 0 {
			c.fail(fmt.Sprintf("models[%d]", i), "no replica that is not draining serves %q", m.Name)
		} else if !decoding[m.Name] && len(f.Replicas) > 0 {
			c.fail(fmt.Sprintf("models[%d]", i), "all replicas of %q that are not draining have the role %q: at least one must generate the answers", m.Name, RolePrefill)
		}
	}
	f.validateCapacity(c)
	f.validateAdapters(c)
}

func (f *Fleet) validatePlanner(c *checker) {
	p := f.Planner
	checkOneOf(c, "planner.adopt", p.Adopt, AdoptIfNeeded, AdoptGain, AdoptAlways)
	checkRange(c, "planner.period", p.Period, 100*time.Millisecond, time.Hour)
	checkRange(c, "planner.window", p.Window, time.Second, 24*time.Hour)
	p.Iteration.validate(c)
	checkRange(c, "planner.stage_replicas", p.StageReplicas, 1, maxStageReplicas)
	checkRange(c, "planner.utilisation", p.Utilisation, 0.01, 1)
}

func (f *Fleet) validateTLS(c *checker) {
	t := f.TLS
	t.validate(c)
	f.validatePlaintext(c)
	if t.Cert != "" {
		if isRemote(f.Control.Listen) && f.Control.Estimator == EstimatorExtProc {
			c.fail("control.estimator", "the control plane serves ext_proc in plain text on its own loopback, where proxies on other hosts cannot reach it; use a module, or content-length with a host name for each model")
		}
		return
	}
	addresses := map[string]string{"control.listen": f.Control.Listen}
	for i, p := range f.Control.Peers {
		addresses[fmt.Sprintf("control.peers[%d]", i)] = p
	}
	if f.Proxy.Admin != "" {
		addresses["proxy.admin"] = f.Proxy.Admin
	}
	for i, r := range f.Replicas {
		addresses[fmt.Sprintf("replicas[%d].peer", i)] = r.Peer
		if r.Admin != "" {
			addresses[fmt.Sprintf("replicas[%d].admin", i)] = r.Admin
		}
	}
	for _, path := range slices.Sorted(maps.Keys(addresses)) {
		if isRemote(addresses[path]) {
			c.fail(path, "%s is not loopback; set tls, or listen on 127.0.0.1", addresses[path])
		}
	}
}

// maxSocketPath bounds the path of a Unix socket: the kernel's limit is 108 bytes with a final zero.
const maxSocketPath = 107

// validateSocket checks the Unix socket of the control plane.
func (f *Fleet) validateSocket(c *checker) {
	path := f.Control.Socket
	switch {
	case path == "" && len(f.Control.SocketUsers) > 0:
		c.fail("control.socket_users", "set control.socket, whose users they are")
	case path == "":
	case !filepath.IsAbs(path) || len(path) > maxSocketPath:
		c.fail("control.socket", "%q: must be an absolute path of at most %d bytes", path, maxSocketPath)
	case f.TLS.Cert != "":
		c.fail("control.socket", "with tls, certificates say who connects to control.listen: remove control.socket")
	case len(f.Control.Peers) > 0:
		c.fail("control.socket", "is for one control plane: remove it, or control.peers, and set tls")
	}
	if i := slices.Index(f.Control.SocketUsers, ""); i >= 0 {
		c.fail(fmt.Sprintf("control.socket_users[%d]", i), "must be the name or number of a user, or *")
	}
}

// validatePlaintext checks that what proxies and clients exchange off loopback is encrypted, or may be plain text.
func (f *Fleet) validatePlaintext(c *checker) {
	t := f.TLS
	for i, name := range t.Plaintext {
		checkOneOf(c, fmt.Sprintf("tls.plaintext[%d]", i), name, PlaintextClients, PlaintextRequests, PlaintextRDMA, PlaintextTraces)
	}
	for i, r := range f.Replicas {
		if isRemote(r.Address) && t.Cert == "" && !t.Allows(PlaintextRequests) {
			c.fail(fmt.Sprintf("replicas[%d].address", i), "%s is not loopback, and prompts would travel in plain text; set tls, or, where a mesh or the network protects them, tls.plaintext: [requests]", r.Address)
		}
	}
	if isRemote(f.Proxy.Listen) && f.Proxy.TLS.Cert == "" && !t.Allows(PlaintextClients) {
		c.fail("proxy.listen", "%s is not loopback, and prompts would travel in plain text; set proxy.tls, or, where something in front of it encrypts them, tls.plaintext: [clients]", f.Proxy.Listen)
	}
	if isRemote(f.Proxy.TraceCollector) && !t.Allows(PlaintextTraces) {
		c.fail("proxy.trace_collector", "%s is not loopback, and Envoys export spans in plain text; use a collector on each host, or set tls.plaintext: [traces]", f.Proxy.TraceCollector)
	}
}

// isRemote reports whether an address is valid and off loopback.
func isRemote(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && !isLoopback(host)
}
