//go:build !cgo || !linux

package inventory

import (
	"context"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

type state struct{}

// OpenNVML fails with device.ErrNoCgo.
func OpenNVML(cfg NVMLConfig) (*NVMLLibrary, error) {
	return nil, fmt.Errorf("%s: %w", topology.NVML, device.ErrNoCgo)
}

// Read fails with ErrClosed: there is no open Library.
func (l *NVMLLibrary) Read() (NVMLInventory, error) { return NVMLInventory{}, ErrClosed }

// ReadHealth fails like Read.
func (l *NVMLLibrary) ReadHealth() ([]topology.GPU, error) { return nil, ErrClosed }

// WatchXids fails like Read.
func (l *NVMLLibrary) WatchXids(ctx context.Context, handle func(gpu int, xid uint64)) error {
	return ErrClosed
}

// Close does nothing.
func (l *NVMLLibrary) Close() error { return nil }
