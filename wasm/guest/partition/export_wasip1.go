package partition

import "github.com/cascadeinfer/cascade/wasm/guest/internal/call"

//go:wasmexport cs_partition_v1
func export(n uint32) uint64 { return decide(call.BeginLarge(n)) }
