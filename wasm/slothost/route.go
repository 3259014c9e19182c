package slothost

import "github.com/cascadeinfer/cascade/policies/lifecycle"

// route says which generation answers a call.
type route struct {
	active lifecycle.Generation
	// candidate answers a part of the calls; 0 when none is in canary.
	candidate lifecycle.Generation
	permille  int    // of the requests, for a kind that decides for one request
	scope     string // for a kind that decides for many requests
}

// triesRequest reports whether the candidate answers for a request, by the hash of its name.
// It is the same on every host. A request that the candidate answers at one share it answers
// at every larger one, and two candidates are tried on different requests.
func (r route) triesRequest(hash uint64) bool {
	return r.candidate != lifecycle.Native && partOf(hash, r.candidate) < r.permille
}

// triesScope reports whether the candidate answers for a scope.
func (r route) triesScope(scope string) bool {
	return r.candidate != lifecycle.Native && r.scope != "" && scope == r.scope
}

// partOf returns which of the 1,000 parts of a generation's canary a hash falls into.
func partOf(hash uint64, g lifecycle.Generation) int {
	// The finalizer of MurmurHash3 spreads neighbouring hashes and generations.
	x := hash ^ uint64(g)*0x9e3779b97f4a7c15
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return int((x ^ x>>33) % 1000)
}

// The hash of a request's name is 64-bit FNV-1a. Decisions about bids and outliers have no
// request name: their arguments are hashed in its place, a 64-bit word at a time.
const (
	hashStart = 14695981039346656037
	hashPrime = 1099511628211
)

func hashRequest(request string) uint64 {
	h := uint64(hashStart)
	for i := range len(request) {
		h = hashWord(h, uint64(request[i]))
	}
	return h
}

func hashWord(h, word uint64) uint64 { return (h ^ word) * hashPrime }
