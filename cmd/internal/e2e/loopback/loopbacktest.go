// Package loopback provides loopback addresses for the listeners of tests:
// processes, and what is stopped and started again.
//
// Invariant: an address is given to one test alone, whatever other processes of tests
// there are on the machine, until the process that asked for it has ended.
package loopback

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The ports, below the range from which outgoing connections take theirs.
const (
	first  = 10_000
	block  = 100 // ports that a process takes at a time
	blocks = 200
)

var (
	mu   sync.Mutex
	left []string // of the blocks that are taken
	// marks are the first ports of the blocks, open for as long as the process lives:
	// who cannot listen there leaves the block alone.
	marks []net.Listener
)

// Failer is a *testing.T, or the like of a script.
type Failer interface {
	Fatalf(format string, args ...any)
}

// Addresses returns n loopback addresses on which no process listens now. Any
// goroutine may call it that may call t.Fatalf, which is called where the machine
// has none left.
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

// take takes another block, and reports whether there was one.
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
