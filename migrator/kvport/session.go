package kvport

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// session is one connection to the engine, with its memory and its offers.
type session struct {
	conn        *api.Conn
	fingerprint string
	memory      *transport.Memory
	table       *Description  // nil: the engine shows none
	unmapped    chan struct{} // closed when memory is not held any more
	abandoned   chan error    // holds the cause once AbandonSession is called

	mu      sync.Mutex
	offers  map[string]*offer // by handle
	changed chan struct{}     // closed and replaced when an offer comes; nil after the end
}

// offer is KV that the engine hands over.
type offer struct {
	api.Offer
	until time.Time     // end of the lease
	timer *time.Timer   // ends it
	taken bool          // by the one reader
	over  chan struct{} // closed when the lease or the session ends
}

// Why an offer is not served.
var (
	errNoOffer  = errors.New("no KV with this handle: its lease has ended, or it was read already")
	errDigest   = errors.New("the KV is of other token ids, or of an engine of another kind")
	errLeaseEnd = errors.New("the lease of the KV has ended")
)

func newSession(conn *api.Conn, w *api.Welcome, memory *transport.Memory) *session {
	return &session{
		conn: conn, fingerprint: w.Fingerprint, memory: memory, table: describe(w),
		unmapped: make(chan struct{}), abandoned: make(chan error, 1), offers: make(map[string]*offer), changed: make(chan struct{}),
	}
}

// write sends a frame. A session that fails to ends.
func (s *session) write(f api.Frame) {
	if s.conn.Write(f) != nil {
		s.conn.Close()
	}
}

// reply ends a fetch of the engine.
func (s *session) reply(id uint64, err error) {
	f := api.Fetched{ID: id}
	if err != nil {
		// A rune that is cut would get longer in JSON.
		f.Error = cleantext.Truncate(strings.ToValidUTF8(err.Error(), "?"), api.MaxText)
	}
	s.write(api.Frame{Fetched: &f})
}

// add adds an offer, whose lease begins now. expired is called if it ends before a reader comes. An
// offer that is one too many ends at once, as if its lease had ended.
func (s *session) add(o api.Offer, lease time.Duration, expired func()) error {
	kept, err := s.keep(o, lease, expired)
	if err == nil && !kept && o.Error == "" {
		expired()
		s.write(api.Frame{Released: &api.Released{Handle: o.Handle}})
	}
	return err
}

// keep is add, but reports false for an offer that is one too many.
func (s *session) keep(o api.Offer, lease time.Duration, expired func()) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range o.Blocks {
		if int64(b) >= int64(s.memory.Blocks) {
			return false, fmt.Errorf("kv.sock: offer of block %d of %d", b, s.memory.Blocks)
		}
	}
	if n := len(o.Blocks) * len(s.memory.Regions); len(o.Sums) != n {
		return false, fmt.Errorf("kv.sock: offer with %d checksums, want %d", len(o.Sums), n)
	}
	if s.offers[o.Handle] != nil {
		return false, fmt.Errorf("kv.sock: the handle %s is in use", o.Handle)
	}
	if len(s.offers) >= maxOffers {
		return false, nil
	}
	x := &offer{Offer: o, until: time.Now().Add(lease), over: make(chan struct{})}
	x.timer = time.AfterFunc(lease, func() {
		if s.expire(x) {
			if x.Error == "" {
				expired()
			}
			s.release(x)
		}
	})
	s.offers[o.Handle] = x
	close(s.changed)
	s.changed = make(chan struct{})
	return true, nil
}

// expire ends the lease of an offer, and reports whether no reader has taken it. A reader releases
// it.
func (s *session) expire(x *offer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offers[x.Handle] != x {
		return false
	}
	if !x.taken {
		return true
	}
	x.closeOver()
	return false
}

// closeOver closes over, once. The session's mu is held.
func (x *offer) closeOver() {
	select {
	case <-x.over:
	default:
		close(x.over)
	}
}

// release forgets an offer that is not read any more, and gives its blocks back.
func (s *session) release(x *offer) {
	s.mu.Lock()
	x.timer.Stop()
	delete(s.offers, x.Handle)
	s.mu.Unlock()
	if x.Error == "" {
		s.write(api.Frame{Released: &api.Released{Handle: x.Handle}})
	}
}

// take returns the offer of a handle, once, if it has the digest. It waits for an offer that the
// engine has named before it is here, until ctx ends.
func (s *session) take(ctx context.Context, handle, digest string) (*offer, error) {
	for {
		x, changed, err := s.tryTake(handle, digest)
		if x != nil || err != nil {
			return x, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errNoOffer
		}
	}
}

// tryTake returns the offer of a handle, or a channel that is closed when one comes.
func (s *session) tryTake(handle, digest string) (*offer, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.offers[handle]
	switch {
	case s.changed == nil:
		return nil, nil, errNoOffer
	case x == nil:
		return nil, s.changed, nil
	case x.taken || !time.Now().Before(x.until):
		return nil, nil, errNoOffer
	case x.Error != "":
		return nil, nil, errors.New(x.Error)
	case subtle.ConstantTimeCompare([]byte(x.Digest), []byte(digest)) != 1:
		return nil, nil, errDigest
	}
	x.taken = true
	return x, nil, nil
}

// end ends all leases: the connection has ended.
func (s *session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.Fail()
	close(s.changed)
	s.changed = nil
	for handle, x := range s.offers {
		x.timer.Stop()
		x.closeOver()
		delete(s.offers, handle)
	}
}
