//go:build !linux

package shm

import "github.com/cascadeinfer/cascade/migrator/transport/lease"

// Transport carries nothing on this operating system.
type Transport struct{ lease.Unsupported }

// New checks the Config.
func New(c Config) (*Transport, error) {
	if _, err := c.validate(); err != nil {
		return nil, err
	}
	return &Transport{"shm"}, nil
}
