package meter

import "math"

// each calls item n times, until the reader fails, and counts the vector.
func (p *pass) each(id byte, r *reader, n uint32, item func(b []byte) []byte) {
	v := &p.out[id]
	for range n {
		v.b = item(v.b)
		if r.err != nil {
			return
		}
		v.n++
	}
}

func (p *pass) typeSection(r *reader) {
	types := func() []byte {
		n := r.count("parameters or results", maxTypes)
		list := make([]byte, n)
		for i := range list {
			list[i] = r.valueType()
		}
		return list
	}
	p.each(secType, r, r.count("types", maxTypes), func(b []byte) []byte {
		if form := r.byte(); r.err == nil && form != formFunction {
			r.fail(r.at-1, "not a function type: "+hexByte(form))
		}
		s := signature{types(), types()}
		p.types = append(p.types, s)
		b = append(appendU32(append(b, formFunction), uint32(len(s.params))), s.params...)
		return append(appendU32(b, uint32(len(s.results))), s.results...)
	})
}

func (p *pass) importSection(r *reader) {
	p.each(secImport, r, r.count("imports", maxFunctions), func(b []byte) []byte {
		start := r.at
		i := Import{r.name(), r.name()}
		if kind := r.byte(); r.err == nil && kind != 0 {
			r.fail(start, "import "+i.String()+" is no function: memories, tables and globals cannot be imported")
		}
		t := r.index("type", len(p.types))
		if r.err == nil && !p.allowed(i) {
			r.fail(start, "import "+i.String()+" is not on the list of allowed ones"+i.advice())
		}
		p.funcs = append(p.funcs, t)
		p.imported++
		p.report.Imports = append(p.report.Imports, i)
		return appendU32(append(appendName(appendName(b, i.Module), i.Name), 0), t)
	})
}

func (p *pass) allowed(i Import) bool {
	for _, a := range p.config.Imports {
		if a == i {
			return true
		}
	}
	return false
}

func (p *pass) functionSection(r *reader) {
	p.each(secFunction, r, r.count("functions", maxFunctions-min(p.imported, maxFunctions)), func(b []byte) []byte {
		t := r.index("type", len(p.types))
		p.funcs = append(p.funcs, t)
		return appendU32(b, t)
	})
}

func (p *pass) tableSection(r *reader) {
	p.each(secTable, r, r.count("tables", maxTables), func(b []byte) []byte {
		t := r.refType()
		least, greatest := r.limits("table", "entries", maxEntries, math.MaxUint32)
		p.tables = append(p.tables, t)
		return appendLimits(append(b, t), least, greatest)
	})
}

func (p *pass) memorySection(r *reader) {
	p.each(secMemory, r, r.count("memories", 1), func(b []byte) []byte {
		least, greatest := r.limits("memory", "pages", p.config.Pages, maxPages)
		p.memories, p.pages = 1, least
		p.report.Pages, p.report.MaxPages = least, greatest
		return appendLimits(b, least, greatest)
	})
}

func (p *pass) globalSection(r *reader) {
	p.each(secGlobal, r, r.count("globals", maxGlobals), func(b []byte) []byte {
		t, mutable := r.valueType(), r.byte()
		if r.err == nil && mutable > 1 {
			r.fail(r.at-1, "unknown mutability "+hexByte(mutable))
		}
		p.mutable += int(mutable)
		b, _ = p.constant(r, append(b, t, mutable))
		p.globals = append(p.globals, t)
		return b
	})
}

// constant copies a constant expression: one instruction and its end. It
// returns the value of an i32, −1 of any other. global.get is not one here: it
// could only name an imported global, and there are none.
func (p *pass) constant(r *reader, b []byte) ([]byte, int64) {
	at := r.at
	op := r.byte()
	value := int64(-1)
	if r.err != nil {
		return b, value
	}
	switch b = append(b, op); op {
	case opI32Const:
		v := r.signed(32)
		b, value = appendSigned(b, v), int64(uint32(v))
	case opI64Const:
		b = appendSigned(b, r.signed(64))
	case opF32Const:
		b = append(b, r.bytes(4)...)
	case opF64Const:
		b = append(b, r.bytes(8)...)
	case opRefNull:
		b = append(b, r.refType())
	case opRefFunc:
		b = appendU32(b, r.index("function", len(p.funcs)))
	default:
		r.fail(at, "opcode "+hexByte(op)+" is not allowed in a constant expression")
	}
	if end := r.byte(); r.err == nil && end != opEnd {
		r.fail(r.at-1, "a constant expression must be one constant")
	}
	return append(b, opEnd), value
}

// Kinds of exports.
const (
	kindFunction = iota
	kindTable
	kindMemory
	kindGlobal
)

func (p *pass) exportSection(r *reader) {
	have := [...]struct {
		what string
		n    int
	}{{"function", len(p.funcs)}, {"table", len(p.tables)}, {"memory", p.memories}, {"global", len(p.globals)}}
	seen := make(map[string]bool)
	p.each(secExport, r, r.count("exports", maxSegments), func(b []byte) []byte {
		start := r.at
		name, kind := r.name(), r.byte()
		switch {
		case r.err != nil:
			return b
		case int(kind) >= len(have):
			r.fail(r.at-1, "unknown kind of export "+hexByte(kind))
			return b
		case name == FuelExport || name == BudgetExport || name == KillExport || name == StackExport:
			r.fail(start, "the export name "+name+" is reserved for the meter")
		case seen[name]:
			r.fail(start, "two exports have the same name")
		}
		seen[name] = true
		i := r.index(have[kind].what, have[kind].n)
		if kind == kindFunction {
			p.report.Exports = append(p.report.Exports, name)
		}
		return appendU32(append(appendName(b, name), kind), i)
	})
}

// elementSection copies the eight forms of element segments: bit 0 of the
// flags means passive or declared, bit 1 an explicit table or type (and, with
// bit 0, declared), bit 2 expressions instead of indices.
func (p *pass) elementSection(r *reader) {
	p.each(secElement, r, r.count("element segments", maxSegments), func(b []byte) []byte {
		start := r.at
		flags := r.u32()
		if r.err == nil && flags > 7 {
			r.fail(start, "unknown form of element segment")
		}
		b = appendU32(b, flags)
		active, explicit, expressions := flags&1 == 0, flags&2 != 0, flags&4 != 0
		if active {
			if explicit {
				b = appendU32(b, r.index("table", len(p.tables)))
			} else if len(p.tables) == 0 {
				r.fail(start, index("table", 0, 0))
			}
			b, _ = p.constant(r, b)
		}
		if flags&3 != 0 {
			if expressions {
				b = append(b, r.refType())
			} else {
				kind := r.byte()
				if r.err == nil && kind != 0 {
					r.fail(r.at-1, "unknown kind of elements "+hexByte(kind))
				}
				b = append(b, kind)
			}
		}
		n := r.count("elements", r.left())
		b = appendU32(b, n)
		for range n {
			if r.err != nil {
				return b
			}
			if expressions {
				b, _ = p.constant(r, b)
			} else {
				b = appendU32(b, r.index("function", len(p.funcs)))
			}
		}
		p.elements++
		return b
	})
}

func (p *pass) dataSection(r *reader) {
	start := r.at
	n := r.count("data segments", maxSegments)
	if r.err == nil && p.datas >= 0 && int(n) != p.datas {
		r.fail(start, "there are not as many data segments as the data count section says")
	}
	p.each(secData, r, n, func(b []byte) []byte {
		start := r.at
		flags := r.u32()
		b = appendU32(b, flags)
		at := int64(0)
		switch {
		case r.err != nil:
			return b
		case flags > 2:
			r.fail(start, "unknown form of data segment")
			return b
		case flags == 2:
			b = appendU32(b, r.index("memory", p.memories))
		case flags == 0 && p.memories == 0:
			r.fail(start, index("memory", 0, 0))
		}
		if flags != 1 {
			b, at = p.constant(r, b)
		}
		n := r.u32()
		data := r.bytes(n)
		if flags != 1 && r.err == nil && (at < 0 || at+int64(n) > int64(p.pages)<<16) {
			r.fail(start, "data segment lies outside the initial memory")
		}
		return append(appendU32(b, n), data...)
	})
}
