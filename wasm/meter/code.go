package meter

import "strconv"

func (p *pass) codeSection(r *reader) {
	start := r.at
	n := r.count("function bodies", maxFunctions)
	if declared := len(p.funcs) - p.imported; r.err == nil && int(n) != declared {
		r.fail(start, strconv.Itoa(int(n))+" function bodies for "+strconv.Itoa(declared)+" functions")
	}
	p.report.Functions = int(n)
	p.each(secCode, r, n, func(b []byte) []byte {
		start := r.at
		size := r.u32()
		if r.err == nil && uint64(size) > maxFunctionBytes {
			r.fail(start, limit("bytes in one function", uint64(size), maxFunctionBytes))
		}
		p.report.Largest = max(p.report.Largest, int(size))
		body := r.part(size)
		if r.err == nil {
			b = p.function(&body, p.types[p.funcs[p.imported+p.bodies]], b)
			r.err = body.err
		}
		p.bodies++
		return b
	})
}

// loopJoins is how many places where control flow meets a loop counts as, per
// loop that it is in: its head is compiled before the branches to it are known.
const loopJoins = 4

// Some of an engine's work grows with the square of how many blocks of code and
// targets of tables a function has: so many make each count one more.
const (
	manyBlocks  = 16
	manyTargets = 1024
)

// A segment is the function's body or a loop's, see the package comment.
type segment struct {
	weight uint64
	before int  // where its loop begins, at the opcode
	at     int  // where its charge belongs in the new code
	inner  bool // a loop without loops in it, see loop.go
	takes  bool // a loop that takes values
	calls  bool // something in it can change the fuel
}

// bodyPass is the state of one function; its slices are kept for the next one.
type bodyPass struct {
	code     []byte // instructions without charges for segments
	locals   []byte // their declaration
	groups   uint32 // runs of equal type in it
	count    int    // parameters and locals
	blocks   []block
	segments []segment // in the order of their places
	fills    bool      // whether a scratch local is needed
	quiet    bool      // whether one is needed for the fuel
	inner    int       // segment of the open loop that was opened last of all, or 0
	outward  []int     // labels in code that lead out of that loop
	moved    []byte    // code on its way, see deepen
	joins    uint64    // places where control flow can meet, see maxMerges
	targets  uint64    // those of them that are of tables of branches
	calls    uint64

	// For the frame.
	slots   uint64 // values of its instructions
	sets    uint64 // assignments to locals
	merged  uint64 // locals that can change in a block, over all blocks
	carried uint64 // values of blocks, and of branches
	passed  int    // most parameters and results of a call
}

// work is what the function adds to Report.Merges.
func (f *bodyPass) work(mutable int) uint64 {
	blocks := f.joins - f.targets
	return f.joins*uint64(f.count) + f.carried + f.calls*uint64(mutable) + blocks*blocks/manyBlocks + f.targets*f.targets/manyTargets
}

// function appends a body with its size: the same one, charged.
func (p *pass) function(r *reader, s signature, b []byte) []byte {
	f := &p.body
	*f = bodyPass{code: f.code[:0], locals: f.locals[:0], blocks: f.blocks[:0], segments: f.segments[:0], outward: f.outward[:0], moved: f.moved}
	f.blocks = append(f.blocks, block{op: opBlock, carries: len(s.results)})
	f.segments = append(f.segments, segment{})
	p.readLocals(r, len(s.params))
	for len(f.blocks) > 0 && r.err == nil {
		p.instruction(r)
	}
	p.report.Merges += f.work(p.mutable)
	if r.err == nil && p.report.Merges > maxMerges {
		r.fail(r.at, limit("merges of locals", p.report.Merges, maxMerges))
	}
	if r.err == nil && r.left() > 0 {
		r.fail(r.at, "instructions after the end of the function")
	}
	frame := f.frame(s)
	p.report.Frame = max(p.report.Frame, frame)
	if r.err == nil && frame > uint64(p.config.Stack) {
		r.fail(r.at, limit("bytes of stack for one function", frame, int(p.config.Stack)))
	}
	if r.err != nil {
		return b
	}
	if f.fills {
		f.locals = append(appendU32(f.locals, 1), typeI32)
		f.groups++
	}
	register := uint32(f.count)
	if f.fills {
		register++
	}
	if f.quiet {
		f.locals = append(appendU32(f.locals, 1), typeI64)
		f.groups++
	}
	fuel := uint32(len(p.globals))
	checkpoint := uint32(len(p.funcs))
	// The size stands first and is known last: the body is made at the end of
	// b and moved up by the size's own length.
	start := len(b)
	b = append(appendU32(b, f.groups), f.locals...)
	counted := f.calls > 0 || frame > leafFrame
	done := 0
	for i, seg := range f.segments {
		ticks := 1 + seg.weight/SegmentWeight
		switch {
		case seg.inner:
			b = append(b, f.code[done:seg.before]...)
			l := innerLoop{f.code[seg.before:seg.at], seg.takes, fuel, checkpoint, register, ticks}
			if seg.calls {
				b = l.appendCalling(b)
			} else {
				b = l.appendQuiet(b)
			}
		case i == 0 && counted:
			b = p.enclose(b, ticks, frame, s.results)
		default:
			b = append(b, f.code[done:seg.at]...)
			b = appendCharge(b, fuel, checkpoint, ticks)
		}
		done = seg.at
	}
	b = append(b, f.code[done:]...)
	if counted {
		b = p.leave(b, frame)
	}
	var size [5]byte
	head := appendU32(size[:0], uint32(len(b)-start))
	b = append(b, head...)
	copy(b[start+len(head):], b[start:])
	copy(b[start:], head)
	return b
}

func (p *pass) readLocals(r *reader, params int) {
	f := &p.body
	f.count = params
	for range r.count("groups of locals", maxLocals) {
		start := r.at
		n := r.u32()
		t := r.valueType()
		if r.err != nil {
			return
		}
		if total := uint64(f.count) + uint64(n); total > maxLocals {
			r.fail(start, limit("parameters and locals in one function", total, maxLocals))
			return
		}
		f.count += int(n)
		f.locals = append(appendU32(f.locals, n), t)
		f.groups++
	}
	if f.count > maxLocals {
		r.fail(r.at, limit("parameters and locals in one function", uint64(f.count), maxLocals))
	}
	p.report.Locals = max(p.report.Locals, f.count)
}

// instruction copies one instruction.
func (p *pass) instruction(r *reader) {
	f := &p.body
	at := r.at
	op := r.byte()
	if r.err != nil {
		return
	}
	here := &f.blocks[len(f.blocks)-1]
	f.segments[here.segment].weight++
	f.slots += slots(op)
	if plain(op) {
		f.code = append(f.code, op)
		return
	}
	if op == opPrefix {
		p.prefixed(r, at)
		return
	}
	if op == opReturn { // through the block that leave ends
		f.carried += uint64(f.blocks[0].carries)
		f.code = append(f.code, opBr)
		f.branch(uint32(len(f.blocks) - 1))
		return
	}
	f.code = append(f.code, op)
	switch op {
	case opBlock, opLoop, opIf:
		p.open(r, op, at, here.segment)
	case opElse:
		if here.op != opIf {
			r.fail(at, "else without if")
		}
		here.op = opElse
	case opEnd:
		if len(f.blocks) > 1 {
			f.merged += min(f.sets-here.sets, uint64(f.count))
		}
		if here.op == opLoop {
			f.closeLoop(here)
		}
		f.blocks = f.blocks[:len(f.blocks)-1]
	case opBr, opBrIf:
		f.joins++
		f.branch(f.label(r))
	case opBrTable:
		n := r.count("labels", r.left())
		f.joins += uint64(n)
		f.targets += uint64(n)
		f.code = appendU32(f.code, n)
		for i := uint32(0); i <= n && r.err == nil; i++ {
			f.branch(f.label(r))
		}
	case opCall, opRefFunc:
		i := r.index("function", len(p.funcs))
		if op == opCall && r.err == nil {
			f.pass(p.types[p.funcs[i]])
			f.segments[here.segment].calls = true
		}
		if op == opRefFunc { // made in Go
			f.segments[here.segment].weight += GrowWeight - 1
		}
		f.code = appendU32(f.code, i)
	case opCallIndirect:
		i := r.index("type", len(p.types))
		if r.err == nil {
			f.pass(p.types[i])
			f.segments[here.segment].calls = true
		}
		f.code = appendU32(f.code, i)
		f.code = appendU32(f.code, r.index("table", len(p.tables)))
	case opSelectTyped:
		if n := r.u32(); r.err == nil && n != 1 {
			r.fail(at, "select must have one type")
		}
		f.code = append(f.code, 1, r.valueType())
	case opLocalGet, opLocalSet, opLocalTee:
		if op != opLocalGet {
			f.sets++
		}
		f.code = appendU32(f.code, r.index("local", f.count))
	case opGlobalGet, opGlobalSet:
		f.code = appendU32(f.code, r.index("global", len(p.globals)))
	case opTableGet, opTableSet:
		f.code = appendU32(f.code, r.index("table", len(p.tables)))
	case opMemorySize, opMemoryGrow:
		if op == opMemoryGrow {
			f.segments[here.segment].weight += GrowWeight - 1
		}
		p.memory(r)
	case opI32Const:
		f.code = appendSigned(f.code, r.signed(32))
	case opI64Const:
		f.code = appendSigned(f.code, r.signed(64))
	case opF32Const:
		f.code = append(f.code, r.bytes(4)...)
	case opF64Const:
		f.code = append(f.code, r.bytes(8)...)
	case opRefNull:
		f.code = append(f.code, r.refType())
	default:
		if op < 0x28 || op > 0x3e {
			r.fail(at, forbidden(op))
			return
		}
		// Bit 6 of the alignment would name another memory.
		align := r.u32()
		if r.err == nil && align > alignment(op) {
			r.fail(at, "alignment is larger than the access")
		}
		f.code = appendU32(appendU32(f.code, align), r.u32())
		if r.err == nil && p.memories == 0 {
			r.fail(at, index("memory", 0, 0))
		}
	}
}

// pass notes a call.
func (f *bodyPass) pass(s signature) {
	f.calls++
	f.passed = max(f.passed, len(s.params)+len(s.results))
	f.slots += 2 * uint64(len(s.params)+len(s.results))
}

// memory copies the index of a memory, which is a byte and must be 0.
func (p *pass) memory(r *reader) {
	if i := r.byte(); r.err == nil && (i != 0 || p.memories == 0) {
		r.fail(r.at-1, index("memory", uint32(i), p.memories))
	}
	p.body.code = append(p.body.code, 0)
}

// prefixed copies an instruction behind opPrefix, with its charge before it.
func (p *pass) prefixed(r *reader, at int) {
	f := &p.body
	// By the specification a number that may be padded; engines read a byte.
	sub := uint32(r.byte())
	if r.err != nil {
		return
	}
	scale := 0
	switch sub {
	case subMemoryInit, subMemoryCopy, subMemoryFill:
		scale = FillBytes
	case subTableInit, subTableCopy, subTableGrow, subTableFill:
		scale = FillEntries
	}
	if scale > 0 {
		f.fills = true
		f.segments[f.blocks[len(f.blocks)-1].segment].calls = true
		p.report.Fills++
		f.code = appendFill(f.code, uint32(len(p.globals)), uint32(len(p.funcs)), uint32(f.count), scale)
	}
	if sub == subTableGrow {
		f.segments[f.blocks[len(f.blocks)-1].segment].weight += GrowWeight - 1
	}
	f.code = appendU32(append(f.code, opPrefix), sub)
	data := func() {
		if r.err == nil && p.datas < 0 {
			r.fail(at, "the data count section is missing")
		}
		f.code = appendU32(f.code, r.index("data segment", max(p.datas, 0)))
	}
	table := func() { f.code = appendU32(f.code, r.index("table", len(p.tables))) }
	element := func() { f.code = appendU32(f.code, r.index("element segment", p.elements)) }
	switch {
	case sub < subMemoryInit:
	case sub == subMemoryInit:
		data()
		p.memory(r)
	case sub == subDataDrop:
		data()
	case sub == subMemoryCopy:
		p.memory(r)
		p.memory(r)
	case sub == subMemoryFill:
		p.memory(r)
	case sub == subTableInit:
		element()
		table()
	case sub == subElemDrop:
		element()
	case sub == subTableCopy:
		table()
		table()
	case sub <= subTableFill:
		table()
	default:
		r.fail(at, "unknown opcode 0xfc "+strconv.Itoa(int(sub)))
	}
}
