package nodeauth

import (
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/policies/identity"
)

// authenticatedStream is one bound stream. It is read by one goroutine at a time.
type authenticatedStream struct {
	grpc.ServerStream
	authenticator *Authenticator
	id            identity.ID
	method        string
	refusal       atomic.Pointer[error] // why it was refused
	named         bool                  // a message has named the sender
}

// RecvMsg gives the service the next message, if it is the identity's.
func (s *authenticatedStream) RecvMsg(m any) error {
	if why := s.refusal.Load(); why != nil {
		return *why
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	must := mustName
	if s.named {
		must = mayName
	}
	if err := checkClaim(s.id, m, must); err != nil {
		err = s.authenticator.refuse(s.Context(), s.id, s.method, err)
		s.refusal.Store(&err)
		return err
	}
	s.named = true
	return nil
}
