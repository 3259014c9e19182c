package nodeauth

import (
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/identity"
)

// authenticatedStream is one stream with an identity. It is read by one
// goroutine at a time.
type authenticatedStream struct {
	grpc.ServerStream
	authenticator *Authenticator
	id            identity.ID
	method        string
	refusal       atomic.Pointer[error] // nil until a message was refused
	named         bool                  // a message has carried the sender's name
}

// RecvMsg returns the next message, if it is from the identity.
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
