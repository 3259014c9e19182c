//go:build !cgo || !linux

package device

import (
	"fmt"
	"unsafe"
)

// Library is a shared library in this process. There is none here.
type Library struct{}

// Load fails with ErrNoCgo.
func Load(name string) (*Library, error) { return nil, fmt.Errorf("%s: %w", name, ErrNoCgo) }

// Symbol fails with ErrNoCgo.
func (l *Library) Symbol(name string) (unsafe.Pointer, error) {
	return nil, fmt.Errorf("%s: %w", name, ErrNoCgo)
}

// Versioned fails with ErrNoCgo.
func (l *Library) VersionedSymbol(name, version string) (unsafe.Pointer, error) {
	return nil, fmt.Errorf("%s: %w", name, ErrNoCgo)
}
