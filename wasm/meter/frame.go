package meter

// What the engine's stack can hold of one call of a function is bounded by what
// is known of its code. The engine gives every value that it cannot keep in a
// register a place of its own in the frame, and never uses one for two: so a
// frame grows with the code, not with what is live at once. Values come from
// instructions, from locals, and where control flow meets, at the beginning of a
// loop and the end of a block: there each local that is assigned in between, and
// each value that a branch carries, can become a new one.
//
// The bound is generous, a real frame is a tenth of it. TestFramesAreBounded
// holds it against the engine's own stack.
const (
	frameFixed  = 384 // saved registers, return address, what the meter itself adds
	slotBytes   = 8
	slotsUsual  = 4  // values of one instruction: an address, its bound, a result
	slotsCall   = 6  // of a call: also the memory's base and size, read anew
	slotsSearch = 20 // of a call through a table
	slotsBulk   = 64 // of an instruction that is a loop of its own
)

// leafFrame is the largest frame that need not be counted in a function that
// calls nothing: there is only one at a time.
const leafFrame = 16 << 10

// slots returns how many values an instruction can make, beyond its results.
func slots(op byte) uint64 {
	switch op {
	case opLocalGet, opLocalSet, opLocalTee, opDrop, opBlock, opLoop, opElse, opEnd, opBr, 0x00, 0x01, opReturn:
		return 0
	case opCall, opMemoryGrow:
		return slotsCall
	case opCallIndirect, opTableGet, opTableSet:
		return slotsSearch
	case opPrefix:
		return slotsBulk
	}
	return slotsUsual
}

// frame bounds the frame of the function that was read, in bytes.
func (f *bodyPass) frame(s signature) uint64 {
	// What calls and branches carry is moved once more on its way.
	values := f.slots + f.merged + 2*f.carried + uint64(f.count) + 2*uint64(len(s.params)+len(s.results))
	return frameFixed + slotBytes*(values+uint64(f.passed))
}

// enclose appends the beginning of a function whose frame counts: its charge in
// ticks and in stack, and a block that all ways out of the function leave.
func (p *pass) enclose(b []byte, ticks, frame uint64, results []byte) []byte {
	fuel, stack := uint32(len(p.globals)), uint32(len(p.globals))+3
	b = appendU32(append(b, opGlobalGet), stack)
	b = appendSigned(append(b, opI64Const), int64(frame))
	b = appendU32(append(b, opI64Sub, opGlobalSet), stack)
	b = appendU32(append(b, opGlobalGet), fuel)
	b = appendSigned(append(b, opI64Const), int64(ticks))
	b = appendU32(append(b, opI64Sub, opGlobalSet), fuel)
	// Below 0 is either.
	b = appendU32(append(b, opGlobalGet), fuel)
	b = appendU32(append(b, opGlobalGet), stack)
	b = append(b, opI64Or, opI64Const, 0, opI64GeS, opIf, blockEmpty, opElse)
	b = appendU32(append(b, opCall), uint32(len(p.funcs)))
	b = append(b, opEnd, opBlock)
	switch len(results) {
	case 0:
		return append(b, blockEmpty)
	case 1:
		return append(b, results[0])
	}
	return appendSigned(b, int64(p.resultType(results)))
}

// leave appends the end of such a function, behind the end of its block.
func (p *pass) leave(b []byte, frame uint64) []byte {
	stack := uint32(len(p.globals)) + 3
	b = appendU32(append(b, opGlobalGet), stack)
	b = appendSigned(append(b, opI64Const), int64(frame))
	b = appendU32(append(b, opI64Add, opGlobalSet), stack)
	return append(b, opEnd)
}

// resultType is the index of a type without parameters that has these results.
func (p *pass) resultType(results []byte) int {
	for i, s := range p.types {
		if len(s.params) == 0 && string(s.results) == string(results) {
			return i
		}
	}
	first := len(p.types) + 1 // behind the checkpoint's
	for i, r := range p.blockTypes {
		if string(r) == string(results) {
			return first + i
		}
	}
	p.blockTypes = append(p.blockTypes, results)
	return first + len(p.blockTypes) - 1
}
