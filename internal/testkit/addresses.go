package testkit

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// The ports, below the range of ephemeral ports.
const (
	firstPort  = 10_000
	portBlock  = 100 // number of ports that a process reserves at a time
	portBlocks = 200
)

var (
	addressesMu     sync.Mutex
	unusedAddresses []string // unused addresses of the reserved blocks
	// portMarks listen on the first ports of the blocks as long as the process runs: a process that
	// cannot listen there skips the block.
	portMarks []net.Listener
)

// Failer is a *testing.T, or its equivalent in a script.
type Failer interface {
	Fatalf(format string, args ...any)
}

// Addresses returns n loopback addresses on which no process listens now, for processes and for listeners that are
// stopped and restarted. No other test process on the host gets them before this one has ended. Addresses calls t.Fatalf if the
// host has none left, so call it only from a goroutine that may call t.Fatalf.
func Addresses(t Failer, n int) []string {
	addressesMu.Lock()
	defer addressesMu.Unlock()
	var out []string
	for len(out) < n {
		if len(unusedAddresses) == 0 && !takePorts() {
			t.Fatalf("every port from %d to %d is taken, or none can be", firstPort, firstPort+portBlock*portBlocks)
			return nil
		}
		a := unusedAddresses[0]
		unusedAddresses = unusedAddresses[1:]
		if l, err := net.Listen("tcp", a); err == nil {
			l.Close()
			out = append(out, a)
		}
	}
	return out
}

// takePorts reserves another block, and reports whether there was one.
func takePorts() bool {
	for _, n := range rand.Perm(portBlocks) {
		at := firstPort + portBlock*n
		mark, err := net.Listen("tcp", loopbackAddress(at))
		if err != nil {
			continue
		}
		portMarks = append(portMarks, mark)
		for port := at + 1; port < at+portBlock; port++ {
			unusedAddresses = append(unusedAddresses, loopbackAddress(port))
		}
		return true
	}
	return false
}

func loopbackAddress(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
