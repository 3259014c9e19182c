package hosttest

import (
	"bytes"
	"encoding/binary"
)

// The address and size of the arena in assembled modules.
const (
	Arena     = 1024
	ArenaSize = 60 << 10
)

// Value types.
const (
	TypeI32 = 0x7f
	TypeI64 = 0x7e
)

// Import is a function that a module imports. Imports have the lowest function indices.
type Import struct {
	Module, Name    string
	Params, Results []byte
}

// Func is a function of a module.
type Func struct {
	Export          string // "" for none
	Params, Results []byte
	Locals          []byte
	Body            []byte // without the end
}

// Module is a module to be encoded.
type Module struct {
	Imports       []Import
	Funcs         []Func
	Pages, Most   uint32 // memory; Most 0 means no limit
	NoMemoryName  bool   // do not export the memory
	ExtraSections []byte
}

// Cat concatenates code.
func Cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// Op returns an instruction with its immediate bytes.
func Op(b ...byte) []byte { return b }

// I32 and I64 push a constant.
func I32(v int32) []byte { return append([]byte{0x41}, signed(int64(v))...) }
func I64(v int64) []byte { return append([]byte{0x42}, signed(v)...) }

// Load32 and Load64 read memory at an offset from the address on the stack.
func Load32(offset uint32) []byte { return append([]byte{0x28, 2}, unsigned(offset)...) }
func Load64(offset uint32) []byte { return append([]byte{0x29, 3}, unsigned(offset)...) }

// Store32 and Store64 write memory.
func Store32(offset uint32) []byte { return append([]byte{0x36, 2}, unsigned(offset)...) }
func Store64(offset uint32) []byte { return append([]byte{0x37, 3}, unsigned(offset)...) }

// Get, Set and Tee are for locals; Call is for functions.
func Get(n byte) []byte  { return []byte{0x20, n} }
func Set(n byte) []byte  { return []byte{0x21, n} }
func Tee(n byte) []byte  { return []byte{0x22, n} }
func Call(n byte) []byte { return []byte{0x10, n} }

// Loop and If are blocks without results; Br(0) in a Loop repeats it.
func Loop(body ...[]byte) []byte { return Cat(Op(0x03, 0x40), Cat(body...), Op(0x0b)) }
func If(body ...[]byte) []byte   { return Cat(Op(0x04, 0x40), Cat(body...), Op(0x0b)) }
func Br(n byte) []byte           { return []byte{0x0c, n} }
func BrIf(n byte) []byte         { return []byte{0x0d, n} }

// Other instructions.
var (
	Unreachable = Op(0x00)
	Return      = Op(0x0f)
	Drop        = Op(0x1a)
	Grow        = Op(0x40, 0)
	Add         = Op(0x6a)
	Eqz         = Op(0x45)
	Forever     = Loop(Br(0))
)

func unsigned(v uint32) []byte { return binary.AppendUvarint(nil, uint64(v)) }

func signed(v int64) (b []byte) {
	for {
		c := byte(v) & 0x7f
		v >>= 7
		if v == 0 && c < 0x40 || v == -1 && c >= 0x40 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func text(s string) []byte { return append(unsigned(uint32(len(s))), s...) }

func section(id byte, items ...[]byte) []byte {
	body := append(unsigned(uint32(len(items))), Cat(items...)...)
	return Cat([]byte{id}, unsigned(uint32(len(body))), body)
}

// Encode returns the module in binary form.
func (m Module) Encode() []byte {
	var types, imported, declared, exported, code [][]byte
	for _, f := range m.Imports {
		imported = append(imported, Cat(text(f.Module), text(f.Name), []byte{0}, unsigned(uint32(len(types)))))
		types = append(types, Cat([]byte{0x60}, text(string(f.Params)), text(string(f.Results))))
	}
	if !m.NoMemoryName {
		exported = append(exported, Cat(text("memory"), []byte{2, 0}))
	}
	for i, f := range m.Funcs {
		declared = append(declared, unsigned(uint32(len(types))))
		types = append(types, Cat([]byte{0x60}, text(string(f.Params)), text(string(f.Results))))
		if f.Export != "" {
			exported = append(exported, Cat(text(f.Export), []byte{0}, unsigned(uint32(len(m.Imports)+i))))
		}
		body := unsigned(uint32(len(f.Locals)))
		for _, l := range f.Locals {
			body = append(body, 1, l)
		}
		body = Cat(body, f.Body, Op(0x0b))
		code = append(code, Cat(unsigned(uint32(len(body))), body))
	}
	memory := Cat([]byte{0}, unsigned(m.Pages))
	if m.Most > 0 {
		memory = Cat([]byte{1}, unsigned(m.Pages), unsigned(m.Most))
	}
	out := Cat([]byte("\x00asm\x01\x00\x00\x00"), section(1, types...))
	if len(imported) > 0 {
		out = append(out, section(2, imported...)...)
	}
	return Cat(out, section(3, declared...), section(5, memory), section(7, exported...), m.ExtraSections, section(10, code...))
}

// Function is a function that decides a kind: local 0 is the frame's length, and it
// returns the result.
func Function(export string, locals []byte, body ...[]byte) Func {
	return Func{Export: export, Params: []byte{TypeI32}, Results: []byte{TypeI64}, Locals: locals, Body: Cat(body...)}
}

// ArenaFunc implements cs_arena_v1: it returns 0 for more than ArenaSize bytes.
func ArenaFunc() Func {
	return Function("cs_arena_v1", nil,
		Get(0), I32(ArenaSize), Op(0x4b), If(I64(0), Return),
		I64(Arena<<32|ArenaSize))
}

// Policy returns a module that exports the arena and these functions.
func Policy(functions ...Func) Module {
	return Module{Funcs: append([]Func{ArenaFunc()}, functions...), Pages: 1, Most: 4}
}

// LeastLoad decides bid-select as bidask.LeastLoad does, after the code in before, which
// may use locals 10 and 11, an i32 and an i64.
func LeastLoad(before ...[]byte) Func {
	const p, n, i, best, stride, load, start, l, s = 1, 2, 3, 4, 5, 6, 7, 8, 9
	locals := []byte{TypeI32, TypeI32, TypeI32, TypeI32, TypeI32, TypeI64, TypeI64, TypeI64, TypeI64, TypeI32, TypeI64}
	return Function("cs_bid_select_v1", locals,
		Cat(before...),
		I32(0), Load32(Arena+28), Tee(n), Eqz, If(I64(1<<32), Return),
		I32(0), Load32(Arena+24), I32(Arena), Add, Set(p),
		I32(0), Load32(Arena+32), Set(stride),
		I64(1<<63-1), Tee(load), Set(start),
		Loop(
			Get(p), Load64(0), Set(l), Get(p), Load64(8), Set(s),
			// i == 0, or less load, or the same and an earlier start
			Get(i), Eqz, Get(l), Get(load), Op(0x53), Op(0x72),
			Get(l), Get(load), Op(0x51), Get(s), Get(start), Op(0x53), Op(0x71), Op(0x72),
			If(Get(i), Set(best), Get(l), Set(load), Get(s), Set(start)),
			Get(p), Get(stride), Add, Set(p),
			Get(i), I32(1), Add, Tee(i), Get(n), Op(0x49), BrIf(0)),
		Get(best), Op(0xad))
}

// OneIn runs code in every nth call, by the call number in the frame.
func OneIn(n int64, code ...[]byte) []byte {
	return Cat(I32(0), Load64(Arena+64), I64(n), Op(0x82), Op(0x50), If(code...))
}

// Result pushes a result, made of status and value.
func Result(status, value uint32) []byte { return I64(int64(uint64(status)<<32 | uint64(value))) }

// LeastLoadModule returns a module with LeastLoad alone.
func LeastLoadModule(before ...[]byte) []byte { return Policy(LeastLoad(before...)).Encode() }
