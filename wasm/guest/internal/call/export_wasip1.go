package call

//go:wasmexport cs_arena_v1
func exportArena(least uint32) uint64 { return region(least) }

//go:wasmimport cascade_v1 log
func hostLog(level uint32, line string)

//go:wasmimport cascade_v1 fail
func hostFail(code uint32, why string)
