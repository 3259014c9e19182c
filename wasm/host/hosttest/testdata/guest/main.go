// Command guest decides every kind with the policies that it links, and misbehaves if
// its configuration says so.
package main

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// The arena is made of words, so that it is aligned to 8. It grows when the host
// has a larger frame.
var (
	arena     = make([]uint64, 1<<10)
	bids      = make([]policies.Bid, 0, 64)
	sites     = make([]policies.Candidate, 0, 64)
	sequences = make([]policies.Sequence, 0, 1024)
	workload  policies.Workload
	mode      string
	sink      []byte
)

func frame(n uint32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(arena))), len(arena)*8)[:n]
}

//go:wasmexport cs_arena_v1
func arenaAt(least uint32) uint64 {
	if least > 4<<20 {
		return 0
	}
	if int(least) > len(arena)*8 {
		arena = make([]uint64, (least+7)/8)
	}
	return abi.Region(uint32(uintptr(unsafe.Pointer(unsafe.SliceData(arena)))), uint32(len(arena)*8))
}

//go:wasmexport cs_configure_v1
func configure(n uint32) uint64 {
	b, s := abi.DecodeConfigureCall(frame(n))
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	mode = string(b)
	return abi.Result(abi.OK, 0)
}

//go:noinline
func recurse(n int) int {
	if n == 0 {
		return 0
	}
	return recurse(n-1) + n
}

//go:wasmexport cs_bid_select_v1
func bidSelect(n uint32) uint64 {
	var s abi.Status
	if bids, s = abi.DecodeSelectCall(frame(n), bids); s != abi.OK {
		return abi.Result(s, 0)
	}
	switch mode {
	case "panic":
		panic("no bid pleases me")
	case "index":
		_ = bids[len(bids)]
	case "recurse":
		recurse(1 << 30)
	case "churn":
		for range 8 {
			sink = make([]byte, 256)
		}
	case "hoard":
		sink = append(sink, make([]byte, 1<<20)...)
	case "sleep":
		select {}
	}
	return abi.EncodeSelectResult(bidask.LeastLoad{}.Select(bids))
}

//go:wasmexport cs_bid_quote_v1
func bidQuote(n uint32) uint64 {
	ask, s := abi.DecodeQuoteCall(frame(n))
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	bid, ok := bidask.Backlog{}.Quote(ask.Occupancy, ask.Migration)
	return abi.EncodeQuoteResult(frame(n), bid, ok)
}

//go:wasmexport cs_outlier_v1
func excess(n uint32) uint64 {
	own, mean, s := abi.DecodeOutlierCall(frame(n))
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	return abi.EncodeOutlierResult(frame(n), bidask.Detector{}.Excess(own, mean))
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
	return abi.EncodeRefineResult(frame(n), partition.WeightedRefiner{}.Refine(b))
}

//go:wasmexport cs_partition_v1
func divide(n uint32) uint64 {
	if s := abi.DecodePartitionCall(frame(n), &workload); s != abi.OK {
		return abi.Result(s, 0)
	}
	if mode == "endless" {
		for {
			recurse(10)
		}
	}
	p, err := partition.Exact{}.Partition(workload)
	if err != nil && err != policies.ErrInfeasible {
		return abi.Result(abi.Failed, 0)
	}
	return abi.EncodePartitionResult(frame(n), p, err == nil)
}

//go:wasmexport cs_guard_v1
func guard(n uint32) uint64 {
	ch, s := abi.DecodeGuardCall(frame(n))
	if s != abi.OK {
		return abi.Result(s, 0)
	}
	for i, stage := range ch.Next.Stages {
		if len(stage.Replicas) > 3 {
			return abi.EncodeGuardResult(frame(n), abi.Denial{Code: 7, Stage: i, Detail: "more than three replicas"}, true)
		}
	}
	return abi.EncodeGuardResult(frame(n), abi.Denial{}, false)
}

func main() {}
