package opa

import (
	"bytes"
	"errors"

	"github.com/tetratelabs/wazero/api"
)

// Name identifies the version of OPA's interface that this package supports.
const Name = "opa-wasm/1"

// module is the module that OPA's modules import from.
const module = "env"

// maxText bounds a text that a module prints or aborts with, in bytes.
const maxText = 256

// Host is the instance to which a Guest belongs. Its methods are called on the goroutine
// of the call.
type Host interface {
	// Charge takes ticks from the call's fuel.
	Charge(ticks int64)
	// Fail records the reason why the call will fail.
	Fail(text string)
	// Log writes a line to the host's log.
	Log(text string)
}

// Import is a function that OPA's modules import from "env".
type Import struct {
	Module, Name    string
	Params, Results []api.ValueType
	// Do implements the function. It may end the call by a panic with an error.
	Do func(h Host, mod api.Module, stack []uint64)
}

const i32 = api.ValueTypeI32

// errAbort and errBuiltin are the panics that end a call.
var (
	errAbort   = errors.New("opa_abort")
	errBuiltin = errors.New("a built-in function that the host does not have")
)

// Imports returns all functions that OPA's modules may import.
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
	// OPA's modules import these functions even if they do not call them.
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

// text returns a copy of a zero-terminated string, truncated to maxText bytes.
func text(memory api.Memory, at uint32) string {
	b, ok := memory.Read(at, min(maxText, memory.Size()-min(at, memory.Size())))
	if !ok {
		return ""
	}
	if n := bytes.IndexByte(b, 0); n >= 0 {
		b = b[:n]
	}
	return string(b)
}
