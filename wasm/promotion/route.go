package promotion

import "github.com/cascadeinfer/cascade/policies/lifecycle"

// Route says which generation answers a call. It is an immutable value.
type Route struct {
	Active lifecycle.Generation
	// Candidate answers a part of the calls; 0 when none is in canary.
	Candidate lifecycle.Generation
	Permille  int    // of the requests, for a kind that decides for one request
	Scope     string // for a kind that decides for many requests
}

// ForRequest returns the generation for a request, by the hash of its name. It is
// the same on every host. A request that the candidate answers at one share it
// answers at every larger one, and two candidates are tried on different
// requests.
func (r Route) ForRequest(hash uint64) lifecycle.Generation {
	if r.Candidate != lifecycle.Native && Share(hash, r.Candidate) < r.Permille {
		return r.Candidate
	}
	return r.Active
}

// ForScope returns the generation for a decision about a scope.
func (r Route) ForScope(scope string) lifecycle.Generation {
	if r.Candidate != lifecycle.Native && r.Scope != "" && scope == r.Scope {
		return r.Candidate
	}
	return r.Active
}

// Share returns which of the 1,000 parts of a generation's canary a hash falls
// into.
func Share(hash uint64, g lifecycle.Generation) int {
	// The finalizer of MurmurHash3 spreads neighbouring hashes and generations.
	x := hash ^ uint64(g)*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return int((x ^ x>>33) % 1000)
}

// HashRequest returns the hash of a request's name that ForRequest takes: 64-bit
// FNV-1a.
func HashRequest(request string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(request) {
		h = (h ^ uint64(request[i])) * 1099511628211
	}
	return h
}
