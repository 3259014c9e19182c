package resources

import (
	"bytes"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// A Prover proves sets as Prove does, with the same verdicts, and reads what the
// sets before had in common with this one only once: between two steps of a
// roll-out most resources stay what they are. It remembers what the last 8 to 16
// sets were made of, and no private keys. The zero value is ready. It is not safe
// for concurrent use.
type Prover struct {
	young, old map[factKey]*fact
	proofs     int // of young
}

// generation is how many proofs one of the Prover's two generations lasts. What
// none of them needed is forgotten with the next one.
const generation = 8

// factKey finds what may be known of a resource. The version is that which the
// resource claims: whether the bytes are the same is seen by comparing them.
type factKey struct {
	typ, name, version string
	unlisted           bool
}

// fact is what a proof found out about one resource. All but leads follows from
// the resource alone, so it holds in every set.
type fact struct {
	resource *Resource     // its version is its content's hash
	message  proto.Message // decoded, within its own constraints and of the right name; nil: not decoded yet
	proven   bool          // all that can be proven of it without the rest of the set is

	manager    *hcmv3.HttpConnectionManager // of a listener; nil: not decoded yet
	nextStage  *fact                        // endpoints: the next longer stage is known to stand right behind them
	stagesUsed map[string]int               // of a route table: stages in use, by model; nil: not counted yet
	references *references                  // of a route table: what its last proof saw of other resources
}

// references is all that the proof of a route table reads in other resources.
type references struct {
	stages                        map[string]string // the endpoints of the clusters that routes lead to
	usesExtProc, hasLengthCluster bool              // proof.asks, and whether there is a LengthCluster
}

// Prove is the function Prove.
func (v *Prover) Prove(s Set) error {
	if v.proofs++; v.proofs > generation || v.young == nil {
		v.young, v.old, v.proofs = make(map[factKey]*fact), v.young, 1
	}
	return v.prove(s)
}

// fact returns what is known of a resource, or a new fact that says nothing,
// known being false.
func (v *Prover) fact(r *Resource) (f *fact, known bool) {
	k := factKey{r.Type, r.Name, r.Version, r.Unlisted}
	if f = v.young[k]; f == nil {
		f = v.old[k]
	}
	if f == nil || !bytes.Equal(f.resource.Body, r.Body) {
		return &fact{resource: r}, false
	}
	f.resource = r // the sets in use have these bytes, and may be the only ones
	v.young[k] = f
	return f, true
}

// keep remembers a fact.
func (v *Prover) keep(f *fact) {
	if r := f.resource; r.Type != SecretType {
		v.young[factKey{r.Type, r.Name, r.Version, r.Unlisted}] = f
	}
}

// proveOnce proves what follows from the resource alone.
func (f *fact) proveOnce(prove func() error) error {
	if f.proven {
		return nil
	}
	err := prove()
	f.proven = err == nil
	return err
}

// stagesOf counts the stages of every model that a route table leads to.
func (f *fact) stagesOf(rc *routev3.RouteConfiguration) map[string]int {
	if f.stagesUsed != nil {
		return f.stagesUsed
	}
	f.stagesUsed = make(map[string]int)
	for _, vh := range rc.VirtualHosts {
		for _, r := range vh.Routes {
			if _, model, k, ok := stageOf(r.GetRoute().GetCluster()); ok {
				f.stagesUsed[model] = max(f.stagesUsed[model], k+1)
			}
		}
	}
	return f.stagesUsed
}

// holds reports whether all is there that the proof of a route table has read.
func (p *proof) holds(l *references) bool {
	if l == nil || l.usesExtProc != p.usesExtProc() || l.hasLengthCluster != (p.clusters[LengthCluster] != nil) {
		return false
	}
	for cluster, endpoints := range l.stages {
		if p.clusters[cluster] == nil || len(p.assignments[endpoints].GetEndpoints()) == 0 {
			return false
		}
	}
	return true
}
