package lease

import (
	"fmt"
	"io"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Lease is one grant: issued, then redeemed at most once, then over.
type Lease struct {
	transport.Grant
	// Memory is the memory that the grant is for. It is held from Redeem until End.
	Memory *transport.Memory

	source *Source
	done   chan struct{}
	ticket [transport.TicketSize]byte

	// guarded by source.mu
	redeemed bool
	over     bool
	users    int      // that have entered and not left
	blocks   []uint64 // a bit for each block that was announced
}

// Done is closed when the lease is over. Its deadline alone does not close it: the user
// of the lease has to watch Deadline.
func (l *Lease) Done() <-chan struct{} { return l.done }

// CloseWhenDone closes c when the lease is over, so that reads and writes of c end,
// unless stop has been called. c is not closed after stop has returned.
func (l *Lease) CloseWhenDone(c io.Closer) (stop func()) {
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-l.done:
			_ = c.Close()
		case <-stopped:
		}
	}()
	return func() { close(stopped); <-ended }
}

// Enter begins a use of the memory, or an answer that depends on the lease. It reports
// false, and must not be followed by Leave, when the lease is over or expired.
func (l *Lease) Enter() bool {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	if l.over || !time.Now().Before(l.Deadline) {
		return false
	}
	l.users++
	return true
}

// Leave ends the use that Enter began.
func (l *Lease) Leave() {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	l.users--
	if l.users == 0 {
		l.source.unused.Broadcast()
	}
}

// CheckAnnounced returns an error unless all of these blocks were announced for the lease.
func (l *Lease) CheckAnnounced(blocks []uint32) error {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	for _, b := range blocks {
		if at := int(b / 64); at >= len(l.blocks) || l.blocks[at]>>(b%64)&1 == 0 {
			return fmt.Errorf("the receiver asked for block %d, which was not announced for migration %s", b, l.Migration)
		}
	}
	return nil
}

// announceLocked adds announced blocks.
func (l *Lease) announceLocked(blocks []uint32) {
	if l.blocks == nil {
		l.blocks = make([]uint64, (l.Memory.Blocks+63)/64)
	}
	for _, b := range blocks {
		if int64(b) < int64(l.Memory.Blocks) {
			l.blocks[b/64] |= 1 << (b % 64)
		}
	}
}

// End gives a redeemed lease back. It is called once, after the last Leave.
func (l *Lease) End() {
	l.source.mu.Lock()
	l.source.dropLocked(func(other *Lease) bool { return other == l })
	l.source.mu.Unlock()
	l.Memory.Release()
}
