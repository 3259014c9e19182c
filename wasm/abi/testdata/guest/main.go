// A guest that answers calls by the policies it is linked with, over the
// guest's half of package abi. The tests build it for wasip1 and hold that it
// decides as the same policies do natively.
package main

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/refine"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// The arena is made of words, so that it is aligned to 8.
var (
	arena     [8 << 10]uint64
	bids      = make([]policies.Bid, 0, 64)
	sites     = make([]policies.Candidate, 0, 64)
	sequences = make([]policies.Sequence, 0, 1024)
)

func frame(n uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&arena)), len(arena)*8)[:n]
}

//go:wasmexport cs_arena_v1
func arenaAt(least uint32) uint64 {
	if uint64(least) > uint64(unsafe.Sizeof(arena)) {
		return 0
	}
	return abi.Region(uint32(uintptr(unsafe.Pointer(&arena))), uint32(unsafe.Sizeof(arena)))
}

//go:wasmexport cs_bid_select_v1
func bidSelect(n uint32) uint64 {
	var s abi.Status
	if bids, s = abi.DecodeSelectCall(frame(n), bids); s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodeSelectResult(bidask.LeastLoad{}.Select(bids))
}

//go:wasmexport cs_bid_quote_v1
func bidQuote(n uint32) uint64 {
	ask, s := abi.DecodeQuoteCall(frame(n))
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	bid, ok := bidask.Backlog{}.Quote(ask.Position, ask.Handover)
	return abi.EncodeQuoteResult(frame(n), bid, ok)
}

//go:wasmexport cs_outlier_v1
func excess(n uint32) uint64 {
	own, mean, s := abi.DecodeOutlierCall(frame(n))
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodeOutlierResult(frame(n), outlier.Detector{}.Excess(own, mean))
}

//go:wasmexport cs_place_v1
func placeAt(n uint32) uint64 {
	a, s := abi.DecodePlaceCall(frame(n), sites)
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodePlaceResult(a, place.Policy{}.Place(a))
}

//go:wasmexport cs_refine_v1
func refineTo(n uint32) uint64 {
	var b policies.BoundaryView
	var s abi.Status
	if b, sequences, s = abi.DecodeRefineCall(frame(n), sequences); s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodeRefineResult(frame(n), refine.Weighted{}.Refine(b))
}

func main() {}
