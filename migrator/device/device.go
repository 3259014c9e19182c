// Package device finds the libraries of this machine's devices at run time: the
// program starts, and says what is missing, on a machine that has none of them.
//
// It loads a library and looks symbols up, and knows none by name; the packages
// below it do. All of the program's cgo is in this folder. Nothing is ever
// unloaded: drivers do not bear it.
package device

import (
	"errors"
	"fmt"
)

// ErrNoLibrary says that a library is not on this machine, or cannot be loaded.
var ErrNoLibrary = errors.New("no such library on this machine")

// ErrNoCgo says that this program cannot load libraries: it was built with
// CGO_ENABLED=0, or for a system other than Linux.
var ErrNoCgo = errors.New("not built with cgo")

// SymbolError says which symbol a library lacks: it is older than what is asked
// of it, or another library.
type SymbolError struct{ Library, Symbol string }

func (e *SymbolError) Error() string {
	return fmt.Sprintf("%s has no %s: the driver is too old", e.Library, e.Symbol)
}
