//go:build !linux

package cuda

import (
	"context"
	"errors"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

var errSystem = errors.New("cuda transport: it needs Linux; use tcp")

// Transport does nothing on this system.
type Transport struct{}

var _ transport.Transport = (*Transport)(nil)

// New checks the Config.
func New(c Config) (*Transport, error) {
	if _, err := c.validate(); err != nil {
		return nil, err
	}
	return &Transport{}, nil
}

// Name returns "cuda".
func (t *Transport) Name() string { return "cuda" }

// Probe says that the system is another.
func (t *Transport) Probe(context.Context) error { return errSystem }

// Reaches returns false.
func (t *Transport) Reaches(from, to string) bool { return false }

// Export fails.
func (t *Transport) Export(transport.Grant) (transport.Offer, error) {
	return transport.Offer{}, errSystem
}

// Revoke does nothing.
func (t *Transport) Revoke(string) {}

// Open fails.
func (t *Transport) Open(context.Context, policies.ReplicaID, transport.Offer) (transport.Puller, error) {
	return nil, errSystem
}

// Run waits for ctx.
func (t *Transport) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
