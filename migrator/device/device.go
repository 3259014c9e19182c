// Package device loads the libraries of this host's devices at run time: the program
// starts without them, and reports what is missing.
//
// Load loads a library, and Symbol looks up its functions; the packages below this one
// know their names. All cgo of the program is in this folder. Libraries are never
// unloaded, since drivers do not support that.
package device

import (
	"errors"
	"fmt"
)

// ErrNoLibrary is the error of Load if a library is missing on this host, or cannot be
// loaded.
var ErrNoLibrary = errors.New("the library is not on this host")

// ErrNoCgo is the error of a program that cannot load libraries: it was built with
// CGO_ENABLED=0, or for another system than Linux.
var ErrNoCgo = errors.New("not built with cgo")

// SymbolError is the error of a library that lacks a symbol: it is too old, or another
// library.
type SymbolError struct{ Library, Symbol string }

func (e *SymbolError) Error() string {
	return fmt.Sprintf("%s lacks the symbol %s: install a newer driver", e.Library, e.Symbol)
}

// Function is a function of a library.
type Function struct {
	Name     string
	Version  string // of the symbol; "" means the default one
	Optional bool   // older libraries lack it
	Inline   bool   // of the library's header: it has no symbol
}
