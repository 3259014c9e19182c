// Plugin is bidask.LeastLoad for Extism: bids of two numbers of 64 bits, load and
// start, little-endian, in; the index of the winner out.
package main

import (
	"encoding/binary"

	"github.com/extism/go-pdk"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

var bids []policies.Bid

//go:wasmexport choose
func choose() int32 {
	in := pdk.Input()
	bids = bids[:0]
	for ; len(in) >= 16; in = in[16:] {
		bids = append(bids, policies.Bid{Load: policies.Tokens(binary.LittleEndian.Uint64(in)), Start: policies.Micros(binary.LittleEndian.Uint64(in[8:]))})
	}
	var out [8]byte
	binary.LittleEndian.PutUint64(out[:], uint64(bidask.LeastLoad{}.Select(bids)))
	pdk.Output(out[:])
	return 0
}

func main() {}
