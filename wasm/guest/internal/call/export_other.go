//go:build !wasip1

package call

// Outside of a sandbox nobody listens: the same policy runs natively, and what
// it would say there is its caller's to say.

func hostLog(uint32, string) {}

func hostFail(uint32, string) {}
