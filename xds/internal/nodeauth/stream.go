package nodeauth

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/ratelimitlog"
)

// stream is one bound stream. It is read by one goroutine at a time.
type stream struct {
	grpc.ServerStream
	binder *Binder
	id     identity.ID
	method string
	why    atomic.Pointer[error] // why it was refused
	named  bool                  // a message has named the sender
}

// RecvMsg gives the service the next message, if it is the identity's.
func (s *stream) RecvMsg(m any) error {
	if why := s.why.Load(); why != nil {
		return *why
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	must := mustName
	if s.named {
		must = mayName
	}
	if err := check(s.id, m, must); err != nil {
		err = s.binder.refuse(s.Context(), s.id, s.method, err)
		s.why.Store(&err)
		return err
	}
	s.named = true
	return nil
}

// notes counts refusals and logs those that are news.
type notes struct {
	log   *slog.Logger
	gate  ratelimitlog.Gate
	count atomic.Uint64
}

func newNotes(log *slog.Logger) *notes {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &notes{log: log}
}

func (n *notes) total() uint64 { return n.count.Load() }

// refused notes a refusal of an identity or, without one, of a machine.
func (n *notes) refused(from net.Addr, id identity.ID, method string, why error) {
	address := ""
	if from != nil {
		address = from.String()
	}
	who := id.String()
	if id == (identity.ID{}) {
		who = address
		if host, _, err := net.SplitHostPort(address); err == nil {
			who = host
		}
	}
	if n.news(who, time.Now()) {
		n.log.Warn("a client is not who it must be and is refused", "client", who, "peer", address, "method", method, "error", why)
	}
}

// news counts a refusal and reports whether it is to be logged.
func (n *notes) news(who string, now time.Time) bool {
	n.count.Add(1)
	return n.gate.Pass(who, now)
}
