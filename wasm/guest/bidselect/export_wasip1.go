package bidselect

import "github.com/cascadeinfer/cascade/wasm/guest/internal/call"

//go:wasmexport cs_bid_select_v1
func export(n uint32) uint64 { return decide(call.Begin(n)) }
