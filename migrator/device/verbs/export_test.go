package verbs

import "unsafe"

// Calls are the names of all calls.
var Calls = func() (all []string) {
	for c := range callCount {
		all = append(all, symbol(c))
	}
	return all
}()

// Optional reports whether a library may lack a call.
func Optional(i int) bool { return optional[call(i)] }

// Inline reports whether a call has no symbol.
func Inline(i int) bool { return call(i) >= postSend }

// Has reports whether a library has an optional call.
func (l *Library) Has(i int) bool { return l.has(call(i)) }

// Sizes returns the sizes of the structures that Go and C share, as each side has them.
func Sizes() (ours, theirs [3]uintptr) {
	theirs[0], theirs[1], theirs[2] = sizes()
	return [3]uintptr{unsafe.Sizeof(Work{}), unsafe.Sizeof(Path{}), unsafe.Sizeof(Completion{})}, theirs
}
