package lease

import (
	"context"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Unsupported is a transport on an operating system that it does not support: its Probe
// fails, and it carries nothing. Its value is the transport's name.
type Unsupported string

var _ transport.Transport = Unsupported("")

func (u Unsupported) err() error {
	return fmt.Errorf("%s transport: it requires Linux; use tcp", string(u))
}

// Name returns the transport's name.
func (u Unsupported) Name() string { return string(u) }

// Probe fails.
func (u Unsupported) Probe(context.Context) error { return u.err() }

// CanReach returns false.
func (u Unsupported) CanReach(from, to string) bool { return false }

// Export fails.
func (u Unsupported) Export(transport.Grant) (transport.Offer, error) {
	return transport.Offer{}, u.err()
}

// Announce does nothing.
func (u Unsupported) Announce(string, []uint32) {}

// Revoke does nothing.
func (u Unsupported) Revoke(string) {}

// Open fails.
func (u Unsupported) Open(context.Context, policies.ReplicaID, transport.Offer) (transport.Puller, error) {
	return nil, u.err()
}

// Run waits for ctx.
func (u Unsupported) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
