// Package discovery decides which Pods of a Kubernetes cluster are the replicas of a
// fleet.
//
// [Decide] is a pure function of the objects of the cluster, of a fleet file without
// replicas, and of the last decision. Its caller reads the objects, writes the replicas
// into the fleet file, and publishes what [Changes] says.
//
// Invariants:
//  1. a decision with its fleet file is a valid fleet,
//  2. the replica of a Pod has the same id for as long as the Pod lives, and no later Pod
//     has that id,
//  3. bad input for one Pod, such as an annotation that cannot be read, changes nothing
//     for any other; if the Pod's replica is in the last decision, it stays as it was,
//  4. each model keeps a replica that takes new requests: an empty or partial list of
//     Pods never empties a fleet.
//
// The package knows nothing of how a cluster is read, so that its rules are tested
// without one.
package discovery

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// MaxPods is how many Pods one fleet may have.
const MaxPods = 10_000

// Pod is what a decision needs to know of one Pod.
type Pod struct {
	// Name and UID are those of the object.
	Name, UID string
	// Node is the name of the node that the Pod runs on; "" before it is scheduled.
	Node string
	// IP is the first address of the Pod; "" before it has one.
	IP string
	// Ready is the condition Ready, which includes readiness gates; for a Gated Pod it is what that would
	// be without the gate of discovery.
	Ready bool
	// Gated says that the Pod has the readiness gate ConditionType.
	Gated bool
	// Condition is the Pod's condition of ConditionType; nil: it has none.
	Condition *Condition
	// Terminating says that the Pod is being deleted (deletionTimestamp is set).
	Terminating bool
	// Ended says that the Pod's containers have ended and will not run again.
	Ended bool
	// Settings are the Pod's labels and annotations whose names begin with Prefix, by
	// full name. Where both exist the annotation counts.
	Settings map[string]string
}

// gateClosed reports whether the Pod's readiness gate of discovery keeps it from being ready.
func (p Pod) gateClosed() bool { return p.Gated && (p.Condition == nil || !p.Condition.Ready) }

// Endpoint is an entry of an EndpointSlice that stands for a Pod.
type Endpoint struct {
	PodUID string
	Port   int // of the slice; 0: the slice has several ports, or none
	Ready  bool
}

// Cluster is what was read from a Kubernetes cluster.
type Cluster struct {
	// Source names the object that selects the Pods, for messages: "Service llm/vllm".
	Source string
	// Pods are those that the object selects, in any order.
	Pods []Pod
	// Port is where front ends serve clients, unless an annotation or an endpoint says
	// otherwise; 0: unknown.
	Port int
	// PoolPorts are all ports of the InferencePool, of which Port is the first; nil for a Service.
	PoolPorts []uint16
	// ByEndpoints says that only Pods with a ready endpoint take new requests, which is
	// so where a Service selects them; otherwise the readiness of the Pods decides.
	ByEndpoints bool
	Endpoints   []Endpoint
}

// Rules say how Pods become replicas.
type Rules struct {
	// Base is the fleet file without replicas.
	Base config.Fleet
	// PeerPort, AdminPort and EnginePort are the ports of Pods without an annotation of
	// their own. An AdminPort of 0 means none.
	PeerPort, AdminPort, EnginePort int
	// SetsConditions says that this process writes the condition of ConditionType, for which Gated Pods wait.
	SetsConditions bool
}

// State says what a decision makes of a Pod.
type State uint8

// The states of a Pod.
const (
	// LeftOut: the Pod is no replica.
	LeftOut State = iota
	// Serving: its replica takes new requests.
	Serving
	// Draining: its replica takes no new request, and running ones migrate.
	Draining
	// Kept: its replica takes new requests although it should not, because its model has
	// no other one, or keeps the settings of the last decision because the present ones are bad.
	Kept
)

// String returns the state in words.
func (s State) String() string {
	return [...]string{"left out", "serving", "draining", "kept"}[s]
}

// Status is what a decision makes of one Pod, and why.
type Status struct {
	Pod     string // its name
	Replica string // its id; "" if the Pod cannot have one
	State   State
	Reason  string // "" for most serving replicas
}

// Decision is the replicas of a fleet.
type Decision struct {
	// Replicas are valid with the rules' Base, sorted by id.
	Replicas []config.Replica
	// Pods has an entry for each Pod, and for each replica that is kept although its Pod
	// is gone, sorted by name and id.
	Pods []Status
}

// Count returns how many Pods are in a state.
func (d Decision) Count(s State) (n int) {
	for _, p := range d.Pods {
		if p.State == s {
			n++
		}
	}
	return n
}

// maxID is the length of the longest id of a replica, as the fleet file has it.
const maxID = 128

// ReplicaID returns the id of a Pod's replica: NAME.UID, so that a Pod that comes back
// under its old name is another replica. It returns an error for a name or UID that
// Kubernetes would not give to a Pod, and for names that are too long.
func ReplicaID(name, uid string) (string, error) {
	id := name + "." + uid
	switch {
	case !isDNSName(name):
		return "", fmt.Errorf("Pod name %.40q: must have lower-case letters, digits, dashes and dots only", name)
	case !isDNSName(uid) || strings.Contains(uid, "."):
		return "", fmt.Errorf("UID %.40q of Pod %s: must have lower-case letters, digits and dashes only", uid, name)
	case len(id) > maxID:
		return "", fmt.Errorf("Pod name %.40s…: must have at most %d bytes, so that the replica's id fits into %d: give its Deployment a shorter name", name, maxID-len(uid)-1, maxID)
	}
	return id, nil
}

// PodOf returns the name and the UID of the Pod that a replica's id was made from; ok is
// false for other ids.
func PodOf(id string) (name, uid string, ok bool) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 {
		return "", "", false
	}
	name, uid = id[:i], id[i+1:]
	_, err := ReplicaID(name, uid)
	return name, uid, err == nil
}

// isDNSName reports whether s could be the name of a Pod or a node: an RFC 1123
// subdomain.
func isDNSName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}
