//go:build !linux

package envoytest

import "os/exec"

// dieWithParent does nothing where the kernel has no parent-death signal: a
// crashed test may leave an Envoy behind.
func dieWithParent(*exec.Cmd) {}
