package etcdtest

import (
	"net"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Link is a TCP proxy in front of a member, which a test can partition.
type Link struct {
	Endpoint string // host:port to dial instead of the member's

	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu    sync.Mutex
	gates [2]chan struct{} // of requests and of answers; closed while bytes pass
	conns map[net.Conn]bool
	ended bool
}

// The indexes of gates.
const (
	requests = iota
	answers
)

// NewLink starts a link to an address; it ends with the test.
func NewLink(t testing.TB, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.NoError(t, err)
	l := &Link{Endpoint: listener.Addr().String(), target: target, listener: listener, conns: make(map[net.Conn]bool)}
	for i := range l.gates {
		l.gates[i] = make(chan struct{})
		close(l.gates[i])
	}
	l.running.Go(l.accept)
	t.Cleanup(func() {
		listener.Close()
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
		l.Heal()
		l.Cut()
		l.running.Wait()
	})
	return l
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", l.target)
		if err != nil {
			client.Close()
			continue
		}
		if !l.add(client, server) {
			client.Close()
			server.Close()
			return
		}
		l.running.Go(func() { l.pump(client, server, requests) })
		l.running.Go(func() { l.pump(server, client, answers) })
	}
}

// add remembers connections, unless the link has ended.
func (l *Link) add(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		l.conns[c] = true
	}
	return !l.ended
}

// pump copies from one connection to the other while the gate is open.
func (l *Link) pump(from, to net.Conn, gate int) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.mu.Lock()
		open := l.gates[gate]
		l.mu.Unlock()
		<-open
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, from)
	delete(l.conns, to)
}

// Partition stops all bytes, in both directions, and closes nothing: both ends wait.
func (l *Link) Partition() {
	l.shut(requests)
	l.shut(answers)
}

// HoldAnswers stops what the member sends: it still gets requests, and executes them.
func (l *Link) HoldAnswers() { l.shut(answers) }

func (l *Link) shut(gate int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.gates[gate]:
		l.gates[gate] = make(chan struct{})
	default: // it is shut
	}
}

// Heal ends Partition and HoldAnswers. What was held back arrives then, late.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, gate := range l.gates {
		select {
		case <-gate:
		default:
			close(gate)
		}
	}
}

// Cut closes all connections, and allows new ones.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}
