//go:build !linux

package host

// reserve leaves memory to Go's heap.
func reserve(uint64) []byte { return nil }

func unreserve([]byte) {}
