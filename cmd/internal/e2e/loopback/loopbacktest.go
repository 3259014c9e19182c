// Package loopback provides loopback addresses for the listeners of tests: for processes, and for
// listeners that are stopped and restarted.
//
// Invariant: Addresses gives an address to only one test among all test processes on the host,
// until the process that called it has ended.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The ports, below the range of ephemeral ports.
const (
	first  = 10_000
	block  = 100 // number of ports that a process reserves at a time
	blocks = 200
)

var (
	mu   sync.Mutex
	left []string // unused addresses of the reserved blocks
	// marks listen on the first ports of the blocks as long as the process runs: a process that
	// cannot listen there skips the block.
	marks []net.Listener
)

// Failer is a *testing.T, or its equivalent in a script.
type Failer interface {
	Fatalf(format string, args ...any)
}

// Addresses returns n loopback addresses on which no process listens now. It calls t.Fatalf if the
// host has none left, so call it only from a goroutine that may call t.Fatalf.
func Addresses(t Failer, n int) []string {
	mu.Lock()
	defer mu.Unlock()
	var out []string
	for len(out) < n {
		if len(left) == 0 && !take() {
			t.Fatalf("every port from %d to %d is taken, or none can be", first, first+block*blocks)
			return nil
		}
		a := left[0]
		left = left[1:]
		if l, err := net.Listen("tcp", a); err == nil {
			l.Close()
			out = append(out, a)
		}
	}
	return out
}

// take reserves another block, and reports whether there was one.
func take() bool {
	for _, n := range rand.Perm(blocks) {
		at := first + block*n
		mark, err := net.Listen("tcp", address(at))
		if err != nil {
			continue
		}
		marks = append(marks, mark)
		for port := at + 1; port < at+block; port++ {
			left = append(left, address(port))
		}
		return true
	}
	return false
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
