//go:build !wasip1

package call

// A native program has no host: its caller logs and reports errors.

func hostLog(uint32, string) {}

func hostFail(uint32, string) {}
