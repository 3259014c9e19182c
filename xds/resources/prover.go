package resources

import (
	"bytes"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// A Prover does what Prove does, with the same results, and proves what a set has in
// common with the previous ones only once: between two steps of a rollout most
// resources do not change. It remembers the resources of the last 8 to 16 sets, but no
// private keys. The zero value is ready. It is not safe for concurrent use.
type Prover struct {
	young, old map[factKey]*fact
	proofs     int // of young
}

// generation is how many proofs one of the Prover's two generations lasts. Facts that
// no proof of a generation used are dropped with the next one.
const generation = 8

// factKey identifies a resource. The version is the claimed one; the bytes are compared
// as well.
type factKey struct {
	typ, name, version string
	unlisted           bool
}

// fact is what a proof found out about one resource. All of it except references
// follows from the resource alone, so it holds in every set.
type fact struct {
	resource *Resource     // whose version is verified
	message  proto.Message // decoded and valid by itself; nil: not decoded yet
	proven   bool          // everything that follows from the resource alone is proven

	manager    *hcmv3.HttpConnectionManager // of a listener; nil: not decoded yet
	nextStage  *fact                        // endpoints: the next longer stage, proven to have the next priority
	stagesUsed map[string]int               // of a route table: stages in use, by model; nil: not counted yet
	references *references                  // of a route table: what its last proof read from other resources
}

// references is what the proof of a route table reads from other resources.
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

// fact returns the known fact of a resource, or a new empty one if known is false.
func (v *Prover) fact(r *Resource) (f *fact, known bool) {
	k := factKey{r.Type, r.Name, r.Version, r.Unlisted}
	if f = v.young[k]; f == nil {
		f = v.old[k]
	}
	if f == nil || !bytes.Equal(f.resource.Body, r.Body) {
		return &fact{resource: r}, false
	}
	f.resource = r // keep the bytes of the newest set, so that older ones can be freed
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

// holds reports whether everything that the proof of a route table read is unchanged.
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
