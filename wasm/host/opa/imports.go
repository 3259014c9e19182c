package opa

import (
	"bytes"
	"errors"

	"github.com/tetratelabs/wazero/api"
)

// Name names OPA's interface, as far as it is known here.
const Name = "opa-wasm/1"

// module is where OPA's modules import from.
const module = "env"

// mostText bounds what is kept of a text that a module prints or ends with.
const mostText = 256

// Host is the instance that a Guest runs in. It is called on the goroutine of the
// call only.
type Host interface {
	// Charge takes ticks of fuel from the call.
	Charge(ticks int64)
	// Fail keeps why the call will fail.
	Fail(text string)
	// Log is for people.
	Log(text string)
}

// Import is a function that OPA's modules import from "env".
type Import struct {
	Module, Name    string
	Params, Results []api.ValueType
	// Do answers it; it may end the call by a panic with an error.
	Do func(h Host, mod api.Module, stack []uint64)
}

const i32 = api.ValueTypeI32

// errAbort and errBuiltin end a call.
var (
	errAbort   = errors.New("opa_abort")
	errBuiltin = errors.New("a built-in function that the host does not have")
)

// Imports lists all that such a module may import.
func Imports() []Import {
	list := []Import{
		{module, "opa_abort", []api.ValueType{i32}, nil, func(h Host, mod api.Module, stack []uint64) {
			h.Fail(text(mod.Memory(), uint32(stack[0])))
			panic(errAbort)
		}},
		{module, "opa_println", []api.ValueType{i32}, nil, func(h Host, mod api.Module, stack []uint64) {
			h.Log(text(mod.Memory(), uint32(stack[0])))
		}},
	}
	// OPA's modules import these whether they call them or not.
	params := []api.ValueType{i32, i32}
	for n := range 5 {
		list = append(list, Import{module, "opa_builtin" + string(rune('0'+n)), params, []api.ValueType{i32}, func(h Host, _ api.Module, _ []uint64) {
			h.Fail(errBuiltin.Error())
			panic(errBuiltin)
		}})
		params = append(params[:len(params):len(params)], i32)
	}
	return list
}

// text copies a string that ends with a 0, cut at mostText bytes.
func text(memory api.Memory, at uint32) string {
	b, ok := memory.Read(at, min(mostText, memory.Size()-min(at, memory.Size())))
	if !ok {
		return ""
	}
	if n := bytes.IndexByte(b, 0); n >= 0 {
		b = b[:n]
	}
	return string(b)
}
