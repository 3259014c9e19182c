package meter

import "math"

// The tests write modules as these trees, which are encoded.

// ins is one instruction; blocks contain their instructions.
type ins struct {
	op     byte
	sub    uint32 // behind 0xfc
	imm    []uint64
	result byte // a block's result type, or 0
	body   []*ins
	other  []*ins // else; nil when there is none
	weight uint64 // a loop's, filled in by weigh
}

func op(op byte, imm ...uint64) *ins { return &ins{op: op, imm: imm} }
func fc(sub uint32, imm ...uint64) *ins {
	return &ins{op: 0xfc, sub: sub, imm: imm}
}
func i32(v int32) *ins             { return op(0x41, uint64(uint32(v))) }
func i64(v int64) *ins             { return op(0x42, uint64(v)) }
func loop(body ...*ins) *ins       { return &ins{op: 0x03, body: body} }
func cond(then, other []*ins) *ins { return &ins{op: 0x04, body: then, other: other} }

type function struct {
	typ    uint32
	locals []byte
	body   []*ins
	weight uint64
}

type global struct {
	typ   byte
	value uint64
}

// module is a module, with what the tests can encode.
type module struct {
	types     []signature
	imports   []Import // all of type 0
	functions []*function
	table     []int64 // entries: function index or −1; nil: no table
	tableMax  uint32
	pages     uint32
	maxPages  uint32
	globals   []global // all mutable
	data      [][]byte // passive segments
	elements  [][]uint32
	exports   map[string]uint32 // functions; memory is always "memory"
	start     int               // −1: none
	fuel      bool              // the last global is exported as "fuel"
	padded    bool              // numbers in their longest encoding
	names     bool
}

// enc encodes numbers, padded if padded is set.
type enc struct {
	b      []byte
	padded bool
}

func (e *enc) u(v uint64) {
	n := 0
	for {
		n++
		more := v >= 0x80 || e.padded && n < 5
		c := byte(v) & 0x7f
		if more {
			c |= 0x80
		}
		e.b = append(e.b, c)
		v >>= 7
		if !more {
			return
		}
	}
}

func (e *enc) s(v int64, bits int) {
	n := 0
	for {
		n++
		c := byte(v) & 0x7f
		v >>= 7
		more := !(v == 0 && c < 0x40 || v == -1 && c >= 0x40) || e.padded && n < (bits+6)/7
		if more {
			c |= 0x80
		}
		e.b = append(e.b, c)
		if !more {
			return
		}
	}
}

func (e *enc) raw(b ...byte) { e.b = append(e.b, b...) }

func (e *enc) vec(n int, item func(e *enc, i int)) {
	e.u(uint64(n))
	for i := range n {
		item(e, i)
	}
}

func (e *enc) name(s string) { e.u(uint64(len(s))); e.raw([]byte(s)...) }

func (e *enc) list(list []*ins) {
	for _, in := range list {
		e.ins(in)
	}
}

func (e *enc) ins(in *ins) {
	e.raw(in.op)
	switch {
	case in.op == 0x02 || in.op == 0x03 || in.op == 0x04:
		if in.result != 0 {
			e.raw(in.result)
		} else {
			e.raw(0x40)
		}
		e.list(in.body)
		if in.other != nil {
			e.raw(0x05)
			e.list(in.other)
		}
		e.raw(0x0b)
	case in.op == 0x0e:
		e.vec(len(in.imm)-1, func(e *enc, i int) { e.u(in.imm[i]) })
		e.u(in.imm[len(in.imm)-1])
	case in.op == 0x41:
		e.s(int64(int32(in.imm[0])), 32)
	case in.op == 0x42:
		e.s(int64(in.imm[0]), 64)
	case in.op == 0x44:
		for i := range 8 {
			e.raw(byte(in.imm[0] >> (8 * i)))
		}
	case in.op == 0xd0:
		e.raw(0x70)
	default:
		if in.op == 0xfc {
			e.raw(byte(in.sub)) // a number in the specification, one byte to wazero
		}
		for i, v := range in.imm {
			memory := in.op == 0x3f || in.op == 0x40 || in.op == 0xfc && (in.sub == 10 || in.sub == 11 || in.sub == 8 && i == 1)
			if memory { // one byte in WebAssembly 2.0, not a number
				e.raw(byte(v))
			} else {
				e.u(v)
			}
		}
	}
}

// encode returns the module in binary form.
func (m *module) encode() []byte {
	out := &enc{b: []byte(preamble)}
	section := func(id byte, write func(e *enc)) {
		e := &enc{padded: m.padded}
		write(e)
		size := &enc{padded: m.padded}
		size.u(uint64(len(e.b)))
		out.raw(id)
		out.raw(size.b...)
		out.raw(e.b...)
	}
	section(1, func(e *enc) {
		e.vec(len(m.types), func(e *enc, i int) {
			e.raw(0x60)
			e.name(string(m.types[i].params))
			e.name(string(m.types[i].results))
		})
	})
	if len(m.imports) > 0 {
		section(2, func(e *enc) {
			e.vec(len(m.imports), func(e *enc, i int) {
				e.name(m.imports[i].Module)
				e.name(m.imports[i].Name)
				e.raw(0)
				e.u(0)
			})
		})
	}
	section(3, func(e *enc) {
		e.vec(len(m.functions), func(e *enc, i int) { e.u(uint64(m.functions[i].typ)) })
	})
	if m.table != nil {
		section(4, func(e *enc) {
			e.raw(1, 0x70, 1)
			e.u(uint64(len(m.table)))
			e.u(uint64(m.tableMax))
		})
	}
	section(5, func(e *enc) { e.raw(1, 1); e.u(uint64(m.pages)); e.u(uint64(m.maxPages)) })
	if len(m.globals) > 0 {
		section(6, func(e *enc) {
			e.vec(len(m.globals), func(e *enc, i int) {
				g := m.globals[i]
				e.raw(g.typ, 1)
				c := map[byte]byte{typeI32: 0x41, typeI64: 0x42, typeF64: 0x44}[g.typ]
				e.ins(op(c, g.value))
				e.raw(0x0b)
			})
		})
	}
	section(7, func(e *enc) {
		n := len(m.exports) + 1
		if m.fuel {
			n++
		}
		e.u(uint64(n))
		e.name("memory")
		e.raw(2, 0)
		if m.fuel {
			e.name("fuel")
			e.raw(3)
			e.u(uint64(len(m.globals) - 1))
		}
		for _, name := range []string{"run", "other", "_initialize"} {
			if f, ok := m.exports[name]; ok {
				e.name(name)
				e.raw(0)
				e.u(uint64(f))
			}
		}
	})
	if m.start >= 0 {
		section(8, func(e *enc) { e.u(uint64(m.start)) })
	}
	active := 0
	if m.table != nil {
		active = len(m.table)
	}
	if active+len(m.elements) > 0 {
		section(9, func(e *enc) {
			n := 0
			for _, f := range m.table {
				if f >= 0 {
					n++
				}
			}
			e.u(uint64(len(m.elements) + n))
			for _, list := range m.elements { // passive, so that their numbers are 0…
				e.raw(1, 0)
				e.vec(len(list), func(e *enc, i int) { e.u(uint64(list[i])) })
			}
			for i, f := range m.table {
				if f >= 0 {
					e.raw(0)
					e.ins(i32(int32(i)))
					e.raw(0x0b, 1)
					e.u(uint64(f))
				}
			}
		})
	}
	if len(m.data) > 0 {
		section(12, func(e *enc) { e.u(uint64(len(m.data))) })
	}
	section(10, func(e *enc) {
		e.vec(len(m.functions), func(e *enc, i int) {
			f := m.functions[i]
			body := &enc{padded: m.padded}
			body.vec(len(f.locals), func(e *enc, i int) { e.u(1); e.raw(f.locals[i]) })
			body.list(f.body)
			body.raw(0x0b)
			e.u(uint64(len(body.b)))
			e.raw(body.b...)
		})
	})
	if len(m.data) > 0 {
		section(11, func(e *enc) {
			e.vec(len(m.data), func(e *enc, i int) { e.raw(1); e.name(string(m.data[i])) })
		})
	}
	if m.names {
		section(0, func(e *enc) {
			e.name("name")
			sub := &enc{}
			sub.vec(len(m.functions), func(e *enc, i int) { e.u(uint64(len(m.imports) + i)); e.name("f" + string(rune('a'+i%26))) })
			e.raw(1)
			e.u(uint64(len(sub.b)))
			e.raw(sub.b...)
		})
	}
	return out.b
}

// single returns a module with one exported function "run".
func single(params, results []byte, locals []byte, body ...*ins) *module {
	return &module{
		types:     []signature{{params, results}},
		functions: []*function{{typ: 0, locals: locals, body: body}},
		pages:     1, maxPages: 4, start: -1,
		exports: map[string]uint32{"run": 0},
	}
}

func f64(v float64) *ins { return op(0x44, math.Float64bits(v)) }
