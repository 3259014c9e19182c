// A guest in standard Go with the loads that policies have: a choice among
// fixed-layout records, a min-plus recursion, and work for the allocator and
// the garbage collector. The tests build it for wasip1 and, for comparison,
// call the same functions natively.
package main

import "unsafe"

const (
	record = 32
	most   = 64
)

var (
	arena [record * most]byte
	table [2][4096]float64
	keep  [][]byte
)

//go:wasmexport arena
func arenaAt() uint32 { return uint32(uintptr(unsafe.Pointer(&arena))) }

func load(b []byte) uint64 {
	_ = b[7]
	return uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 |
		uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
}

// choose returns the record of n with the least load, then the earliest start.
//
//go:wasmexport choose
func choose(n uint32) uint32 {
	best, least, start := uint32(0), int64(-1), int64(0)
	for i := range n {
		at := arena[i*record : (i+1)*record]
		l, s := int64(load(at)), int64(load(at[8:]))
		if least < 0 || l < least || l == least && s < start {
			best, least, start = i, l, s
		}
	}
	return best
}

// divide is a min-plus recursion over n replicas and b buckets.
//
//go:wasmexport divide
func divide(n, b uint32) float64 {
	now, next := table[0][:], table[1][:]
	for i := range now[:b*8] {
		now[i] = float64(i*i%97) + 1
	}
	for e := range n {
		for l := range b {
			best := 1e18
			for k := range l + 1 {
				c := now[k] + float64((l-k)*(e+1))*0.5 + float64(k)/float64(e+1)
				if c < best {
					best = c
				}
			}
			next[l] = best
		}
		now, next = next, now
	}
	return now[b-1]
}

// churn allocates n blocks of 1 KiB and keeps a few.
//
//go:wasmexport churn
func churn(n uint32) uint32 {
	sum := uint32(0)
	for i := range n {
		b := make([]byte, 1024)
		b[i%1024] = byte(i)
		sum = sum*31 + uint32(b[i%1024])
		if i%64 == 0 {
			keep = append(keep, b)
		}
		if len(keep) > 100 {
			keep = keep[50:]
		}
	}
	return sum
}

func fib(n uint32) uint32 {
	if n < 2 {
		return n
	}
	return fib(n-1) + fib(n-2)
}

//go:wasmexport recurse
func recurse(n uint32) uint32 { return fib(n) }

//go:wasmexport crash
func crash(i uint32) uint32 { return uint32(arena[int(i)+len(arena)]) }

func main() {}
