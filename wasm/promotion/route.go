package promotion

import "github.com/cascadeinfer/cascade/wasm/abi"

// Generation numbers the modules of a slot, as their signed statements do. 0 is
// the native policy.
type Generation uint64

// Native is the policy that is linked into the host.
const Native Generation = 0

// Route says which generation answers a call. It is a value that does not change.
type Route struct {
	Active Generation
	// Candidate answers for a part of the calls; 0 when there is none in canary.
	Candidate Generation
	Permille  int    // of the requests, for a kind that decides for one request
	Scope     string // for a kind that decides for many
}

// PerRequest reports whether a kind decides for one request, so that a canary can
// be a share of the requests. The others' canary is a scope.
func PerRequest(k abi.Kind) bool {
	return k == abi.Quote || k == abi.Select || k == abi.Place || k == abi.Outlier
}

// Of returns the generation for a request, by the hash of its name. It is the
// same wherever it is asked, and a request that the candidate answers at one
// share it answers at every larger one; two candidates try on different
// requests.
func (r Route) Of(hash uint64) Generation {
	if r.Candidate != Native && Share(hash, r.Candidate) < r.Permille {
		return r.Candidate
	}
	return r.Active
}

// OfScope returns the generation for a decision about a scope.
func (r Route) OfScope(scope string) Generation {
	if r.Candidate != Native && r.Scope != "" && scope == r.Scope {
		return r.Candidate
	}
	return r.Active
}

// Share places a hash among the 1,000 parts that a generation's canary has.
func Share(hash uint64, g Generation) int {
	// The finalizer of MurmurHash3: neighbouring hashes and generations come
	// apart.
	x := hash ^ uint64(g)*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return int((x ^ x>>33) % 1000)
}

// Hash is the hash of a request's name that Of takes: 64-bit FNV-1a.
func Hash(request string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(request) {
		h = (h ^ uint64(request[i])) * 1099511628211
	}
	return h
}
