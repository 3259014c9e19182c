package console

// Advice is what a fault means for the fleet and what an operator does about it.
type Advice struct {
	Title   string `json:"title"`             // the fault in a few words
	Meaning string `json:"meaning"`           // what it means for requests
	Action  string `json:"action"`            // what to do
	Command string `json:"command,omitempty"` // shows more, or does it
}

// advice has the advice by kind of fault; TestAdviceIsComplete in xds/control checks that it has
// every kind.
var advice = map[string]Advice{
	"model": {"No replica takes requests", "All requests for this model fail.",
		"Restart the engines. The faults of its replicas name each one's reason.", "cascade status"},
	"overload": {"Clients are refused, or wait long", "More requests arrive than the replicas serve in time.",
		"Add the replicas that the line names, or let clients send less. Weigh tenants with overload.tenants.", "cascade status"},
	"replica": {"Replica is unhealthy", "It gets no new requests. The other replicas carry its share.",
		"As the line says: restart the engine or the migrator, or correct the address in the fleet file.", "cascade status"},
	"capacity": {"KV cache has another size than the fleet file says", "The smaller of the two sizes counts.",
		"Remove kv_tokens from the fleet file, or correct it.", "cascade config explain models"},
	"descriptors": {"File descriptors are running out", "The daemon refuses new requests, which go elsewhere.",
		"Raise LimitNOFILE= of its unit.", ""},
	"memory": {"Memory is running out", "The daemon refuses new requests, which go elsewhere.",
		"Raise its memory limit, or GOMEMLIMIT.", ""},
	"certificate": {"Certificate expires", "Connections fail once it has expired.",
		"Replace the file; no restart is needed.", ""},
	"other": {"A daemon lacks something", "The daemon is of a later version, and reports a problem that this one does not know.",
		"As the line says.", ""},
	"refused_clients": {"Clients are refused", "A client's certificate does not match, or it exceeds control.limits.",
		"Issue the certificate that the line names, or raise the limit.", ""},
	"store": {"Plan store fails", "The plan in force stays, and proxies keep it. Orders fail while it cannot be written.",
		"Repair the disk, the file server or etcd. If no control plane starts, repair the stored plan.", "cascade plan repair -c fleet.yaml"},
	"control_plane": {"A control plane is gone", "Another one leads, and proxies continue with those that are left.",
		"Start it again.", "cascade status"},
	"no_leader": {"No control plane plans", "Plans do not change. Requests are routed by the last one.",
		"See that a control plane can write the plan store.", "cascade status"},
	"name": {"Two control planes have one name", "They cannot agree on which of them plans.",
		"Give each a control.name of its own.", ""},
	"fleet_file": {"Fleet file is not in force", "The last valid file stays in force.",
		"Correct the file.", "cascade config check fleet.yaml"},
	"fleet_file_differs": {"Control planes have different fleet files", "Proxies may get different replicas from different control planes.",
		"Copy one file to all control planes.", "cascade status"},
	"removal": {"Fleet file removes many replicas", "It waits until an operator confirms it.",
		"Correct the file, or confirm it if it is meant.", "cascade config check --confirm"},
	"rollout": {"Roll-out is stopped", "A proxy does not have what it was sent, and keeps its last good version.",
		"Read the reason that the proxy gives. Upgrade the proxy, or go back to the plan before.", "cascade plan history"},
	"publish": {"Newest state is not published", "The last published state stays in force.",
		"Correct what the line names.", ""},
	"policy": {"Hosts refuse a policy module", "They keep the module before.",
		"See what each host says, and push another generation.", "cascade policy status"},
	"audit": {"Audit log lacks records", "Requests and orders go on, but the log does not say who gave some of them.",
		"Free the disk of control.audit, or correct its path.", "cascade config explain control.audit"},
}

// AdviceFor returns the advice for a kind of fault; for a kind that it does not know, general advice and false.
func AdviceFor(kind string) (a Advice, ok bool) {
	if a, ok = advice[kind]; !ok {
		a = Advice{Title: kind, Meaning: "Something does not work.", Action: "As the line says.", Command: "cascade status"}
	}
	return a, ok
}
