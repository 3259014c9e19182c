//go:build !cgo || !linux

package device

import (
	"fmt"
	"unsafe"
)

// Library is a shared library in this process. There is none here.
type Library struct{}

// Table has no functions: no library is loaded.
type Table struct{}

// Load fails with ErrNoCgo.
func Load(name string) (*Library, error) { return nil, fmt.Errorf("%s: %w", name, ErrNoCgo) }

// Symbol fails with ErrNoCgo.
func (l *Library) Symbol(name string) (unsafe.Pointer, error) {
	return nil, fmt.Errorf("%s: %w", name, ErrNoCgo)
}

// Table fails with ErrNoCgo.
func (l *Library) Table([]Function) (Table, error) { return Table{}, ErrNoCgo }

// Has returns false.
func (t Table) Has(int) bool { return false }

// Text returns "".
func Text(uint64) string { return "" }

// Memory returns nil.
func Memory(uint64) unsafe.Pointer { return nil }
