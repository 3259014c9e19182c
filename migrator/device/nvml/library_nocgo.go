//go:build !cgo || !linux

package nvml

import (
	"context"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

type state struct{}

// Open fails with device.ErrNoCgo.
func Open(cfg Config) (*Library, error) {
	return nil, fmt.Errorf("%s: %w", topology.NVML, device.ErrNoCgo)
}

// Read fails with ErrClosed: there is no open Library.
func (l *Library) Read() (Inventory, error) { return Inventory{}, ErrClosed }

// ReadHealth fails like Read.
func (l *Library) ReadHealth() ([]topology.GPU, error) { return nil, ErrClosed }

// WatchXids fails like Read.
func (l *Library) WatchXids(ctx context.Context, handle func(gpu int, xid uint64)) error {
	return ErrClosed
}

// Close does nothing.
func (l *Library) Close() error { return nil }
