package meter

// A generator of valid modules from a string of bytes. Every choice uses one byte, and 0 when
// the string is used up, so that a fuzzer can steer it and short strings give small modules.

type generator struct {
	in     []byte
	m      *module
	locals []byte // types, parameters included
	labels []byte // result type of each open label, innermost last; loops have 0
	result byte   // result type of the function
	budget int    // instructions that may still be generated
	self   int    // index of the function being generated
}

func (g *generator) choose(n int) int {
	if len(g.in) == 0 || n <= 0 {
		return 0
	}
	c := int(g.in[0]) % n
	g.in = g.in[1:]
	return c
}

// The types of all generated modules. Imports have type 0, without parameters and results; run
// has type 1.
var genTypes = []signature{
	{nil, nil},
	{[]byte{typeI32, typeI64}, []byte{typeI64}},
	{[]byte{typeI32}, []byte{typeI32}},
	{[]byte{typeI64, typeF64}, nil},
	{nil, []byte{typeI64}},
}

func generate(in []byte) *module {
	g := &generator{in: in, m: &module{types: genTypes, pages: 1, start: -1}}
	m := g.m
	m.maxPages = 1 + uint32(g.choose(3))
	m.padded, m.names = g.choose(4) == 1, g.choose(2) == 1
	if g.choose(3) == 1 {
		m.imports = []Import{{"cascade_v1", "log"}}
	}
	m.globals = []global{{typeI32, 7}, {typeI64, 9}, {typeI64, 1 << 40}, {typeF64, 0}}
	m.data = [][]byte{[]byte("some bytes to copy from"), make([]byte, 3000)}
	n := 1 + g.choose(4)
	all := func(i int) uint32 { return uint32(i % (n + len(m.imports))) }
	m.table, m.tableMax = make([]int64, 6), 300
	for i := range m.table {
		m.table[i] = int64(g.choose(n+len(m.imports)+1)) - 1
	}
	m.elements = [][]uint32{{all(0), all(1), all(2)}}
	m.exports = map[string]uint32{"run": uint32(len(m.imports))}
	for i := range n {
		t := uint32(1)
		if i > 0 {
			t = uint32(g.choose(len(genTypes)))
		}
		m.functions = append(m.functions, &function{typ: t})
	}
	for i, f := range m.functions {
		g.function(i, f)
	}
	return m
}

func (g *generator) function(i int, f *function) {
	s := g.m.types[f.typ]
	for range g.choose(5) {
		f.locals = append(f.locals, [...]byte{typeI32, typeI64, typeF64}[g.choose(3)])
	}
	g.self, g.budget = i, 20+8*g.choose(60)
	g.locals = append(append([]byte(nil), s.params...), f.locals...)
	g.result = 0
	if len(s.results) > 0 {
		g.result = s.results[0]
	}
	g.labels = []byte{g.result}
	f.body = g.statements(4)
	if g.result != 0 {
		f.body = append(f.body, g.value(g.result, 3)...)
	}
}

func (g *generator) statements(depth int) (list []*ins) {
	for range 1 + g.choose(6) {
		if g.budget < 0 || len(g.in) == 0 {
			break
		}
		list = append(list, g.statement(depth)...)
	}
	return list
}

func cat(parts ...[]*ins) (list []*ins) {
	for _, p := range parts {
		list = append(list, p...)
	}
	return list
}

func one(in *ins) []*ins { return []*ins{in} }

// inside generates a list with one more open label.
func (g *generator) inside(label byte, make func() []*ins) []*ins {
	g.labels = append(g.labels, label)
	list := make()
	g.labels = g.labels[:len(g.labels)-1]
	return list
}

// local returns a local of a type, or −1.
func (g *generator) local(t byte) int {
	start := g.choose(len(g.locals))
	for i := range g.locals {
		if n := (start + i) % len(g.locals); g.locals[n] == t {
			return n
		}
	}
	return -1
}

func (g *generator) anyType() byte { return [...]byte{typeI32, typeI64, typeF64}[g.choose(3)] }

// statement generates instructions that leave the stack unchanged.
func (g *generator) statement(depth int) []*ins {
	g.budget -= 4
	kind := g.choose(24)
	if depth <= 0 && (kind == 1 || kind == 2 || kind == 3 || kind == 4) {
		kind = 0
	}
	small := func() []*ins { return g.value(typeI32, 1) }
	size := func() []*ins { return one(i32([...]int32{0, 1, 5, 1023, 1024, 2500, 6000, 70_000}[g.choose(8)])) }
	switch kind {
	case 0, 5, 6:
		t := g.anyType()
		if l := g.local(t); l >= 0 {
			return append(g.value(t, 3), op(0x21, uint64(l)))
		}
		return one(op(0x01))
	case 1:
		return one(&ins{op: 0x02, body: g.inside(0, func() []*ins { return g.statements(depth - 1) })})
	case 2, 3: // a loop that mostly ends
		body := g.inside(0, func() []*ins {
			list := g.statements(depth - 1)
			return append(append(list, g.value(typeI32, 2)...), op(0x0d, 0))
		})
		if g.choose(3) > 0 {
			if l := g.local(typeI32); l >= 0 {
				n := uint64(l)
				body = g.inside(0, func() []*ins { return g.statements(depth - 1) })
				body = append(body, op(0x20, n), i32(1), op(0x6b), op(0x22, n), i32(0), op(0x4a), op(0x0d, 0))
				return []*ins{i32(int32(g.choose(40))), op(0x21, n), loop(body...)}
			}
		}
		return one(loop(body...))
	case 4:
		then := g.inside(0, func() []*ins { return g.statements(depth - 1) })
		var other []*ins
		if g.choose(2) == 1 {
			other = append(g.inside(0, func() []*ins { return g.statements(depth - 1) }), op(0x01))
		}
		return append(small(), cond(then, other))
	case 7, 8: // a branch out, taken or not
		to := g.choose(len(g.labels))
		label := g.labels[len(g.labels)-1-to]
		if label != 0 {
			return cat(g.value(label, 1), small(), one(op(0x0d, uint64(to))), one(op(0x1a)))
		}
		return append(small(), op(0x0d, uint64(to)))
	case 9:
		if g.choose(4) > 0 {
			return one(op(0x01))
		}
		to := g.choose(len(g.labels))
		if label := g.labels[len(g.labels)-1-to]; label != 0 {
			return append(g.value(label, 1), op(0x0c, uint64(to)))
		}
		return one(op(0x0c, uint64(to)))
	case 10: // br_table among labels without a result
		var to []uint64
		for i := range g.labels {
			if g.labels[len(g.labels)-1-i] == 0 {
				to = append(to, uint64(i))
			}
		}
		if len(to) < 2 || g.choose(3) > 0 {
			return one(op(0x01))
		}
		return append(small(), op(0x0e, to...))
	case 11:
		t := g.anyType()
		return append(g.value(t, 3), op(0x24, map[byte]uint64{typeI32: 0, typeI64: 1 + uint64(g.choose(2)), typeF64: 3}[t]))
	case 12:
		return cat(g.address(), g.value(typeI32, 2), one(op(0x36, uint64(g.choose(3)), uint64(g.choose(200)))))
	case 13:
		return cat(g.address(), g.value(typeI64, 2), one(op(0x37, uint64(g.choose(4)), uint64(g.choose(200)))))
	case 14:
		return cat(g.address(), g.value(typeI32, 2), one(op(0x3a, 0, uint64(g.choose(200)))))
	case 15:
		return g.calls()
	case 16: // memory.fill
		return cat(g.address(), small(), size(), one(fc(11, 0)))
	case 17: // memory.copy
		return cat(g.address(), g.address(), size(), one(fc(10, 0, 0)))
	case 18: // memory.init and data.drop
		if g.choose(5) == 1 {
			return one(fc(9, uint64(g.choose(2))))
		}
		return cat(g.address(), one(i32(int32(g.choose(4)))), size(), one(fc(8, uint64(g.choose(2)), 0)))
	case 19:
		return g.tables()
	case 20:
		return []*ins{i32(int32(g.choose(3))), op(0x40, 0), op(0x1a)}
	case 21:
		if g.choose(12) == 1 {
			return one(op(0x00))
		}
	case 22:
		if g.choose(6) == 1 {
			if g.result != 0 {
				return append(g.value(g.result, 2), op(0x0f))
			}
			return one(op(0x0f))
		}
	case 23: // weight, so that charges differ
		var list []*ins
		for range g.choose(256) * 3 {
			list = append(list, op(0x01))
		}
		return list
	}
	return one(op(0x01))
}

func (g *generator) calls() []*ins {
	switch f := g.choose(len(g.m.functions) + len(g.m.imports)); {
	case f < len(g.m.imports):
		return one(op(0x10, uint64(f)))
	case g.choose(2) == 0:
		return g.call(g.m.functions[f-len(g.m.imports)].typ, one(op(0x10, uint64(f))))
	}
	t := uint32(g.choose(len(g.m.types)))
	return g.call(t, []*ins{i32(int32(g.choose(8))), op(0x11, uint64(t), 0)})
}

func (g *generator) call(typ uint32, how []*ins) (list []*ins) {
	s := g.m.types[typ]
	for _, p := range s.params {
		list = append(list, g.value(p, 1)...)
	}
	list = append(list, how...)
	for range s.results {
		list = append(list, op(0x1a))
	}
	return list
}

func (g *generator) tables() []*ins {
	n := func() *ins { return i32(int32(g.choose(9))) }
	ref := op(0xd0)
	if g.choose(2) == 1 {
		// Only functions of an element segment may be referenced.
		list := g.m.elements[0]
		ref = op(0xd2, uint64(list[g.choose(len(list))]))
	}
	switch g.choose(5) {
	case 0:
		return []*ins{n(), ref, n(), fc(17, 0)}
	case 1:
		return []*ins{n(), n(), n(), fc(14, 0, 0)}
	case 2:
		return []*ins{n(), n(), i32(int32(g.choose(4))), fc(12, 0, 0)}
	case 3:
		return []*ins{ref, i32(int32(g.choose(3) * 130)), fc(15, 0), op(0x1a)}
	}
	return []*ins{fc(16, 0), op(0x1a)}
}

// address generates an i32 that is mostly inside the memory.
func (g *generator) address() []*ins {
	if g.choose(12) == 1 {
		return g.value(typeI32, 1)
	}
	return cat(g.value(typeI32, 1), one(i32(0x7fff)), one(op(0x71)))
}

// value generates instructions that push one value of a type.
func (g *generator) value(t byte, depth int) []*ins {
	g.budget--
	kind := g.choose(10)
	if depth <= 0 || g.budget < 0 {
		kind %= 3
	}
	switch {
	case kind == 0 || kind == 1:
		if l := g.local(t); l >= 0 {
			return one(op(0x20, uint64(l)))
		}
	case kind == 2:
	case kind == 3:
		return one(op(0x23, map[byte]uint64{typeI32: 0, typeI64: 1 + uint64(g.choose(2)), typeF64: 3}[t]))
	case kind == 4: // a block with a result
		body := g.inside(t, func() []*ins { return append(g.statements(depth-2), g.value(t, depth-1)...) })
		return one(&ins{op: 0x02, result: t, body: body})
	case kind == 5:
		then := g.inside(t, func() []*ins { return g.value(t, depth-1) })
		other := g.inside(t, func() []*ins { return g.value(t, depth-1) })
		return append(g.value(typeI32, 1), &ins{op: 0x04, result: t, body: then, other: other})
	case kind == 6:
		return cat(g.value(t, depth-1), g.value(t, depth-1), g.value(typeI32, 1), one(op(0x1b)))
	default:
		return g.compute(t, depth)
	}
	switch t {
	case typeI32:
		return one(i32(int32(g.choose(256)) << [...]int{0, 0, 0, 4, 12, 24}[g.choose(6)]))
	case typeI64:
		return one(i64(int64(g.choose(256)) << [...]int{0, 0, 8, 33, 56}[g.choose(5)]))
	}
	return one(f64(float64(g.choose(256)) * 1.25))
}

func (g *generator) compute(t byte, depth int) []*ins {
	sub := func(t byte) []*ins { return g.value(t, depth-1) }
	pick := func(ops ...byte) *ins { return op(ops[g.choose(len(ops))]) }
	switch t {
	case typeI32:
		switch g.choose(8) {
		case 0:
			return append(sub(typeI32), pick(0x45, 0x67, 0x69, 0xc0))
		case 1:
			return cat(sub(typeI32), sub(typeI32), one(op(0x46+byte(g.choose(10)))))
		case 2:
			return cat(sub(typeI64), sub(typeI64), one(op(0x51+byte(g.choose(10)))))
		case 3:
			return append(g.address(), op([...]byte{0x28, 0x2d, 0x2e}[g.choose(3)], 0, uint64(g.choose(100))))
		case 4:
			return append(sub(typeI64), pick(0x50, 0xa7))
		case 5:
			return append(sub(typeF64), fc(2))
		case 6:
			return one(op(0x3f, 0))
		}
		return cat(sub(typeI32), sub(typeI32), one(op(0x6a+byte(g.choose(15)))))
	case typeI64:
		switch g.choose(5) {
		case 0:
			return append(sub(typeI32), pick(0xac, 0xad))
		case 1:
			return append(g.address(), op(0x29, 0, uint64(g.choose(100))))
		case 2:
			return append(sub(typeF64), fc(6))
		}
		return cat(sub(typeI64), sub(typeI64), one(op(0x7c+byte(g.choose(15)))))
	}
	if g.choose(3) == 0 {
		return append(sub(typeI32), op(0xb7))
	}
	return cat(sub(typeF64), sub(typeF64), one(pick(0xa0, 0xa2)))
}
