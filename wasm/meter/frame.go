package meter

// The size of a function's frame on the engine's stack is bounded by its code. The engine
// gives every value that it cannot keep in a register its own slot in the frame, and does
// not reuse slots: so a frame grows with the code, not with the live values. Values come
// from instructions, from locals, and from merge points of the control flow (the
// beginning of a loop and the end of a block), where each local that is assigned in
// between, and each value that a branch carries, can become a new value.
//
// The bound is generous: a real frame is a tenth of it. TestFramesAreBounded compares it
// with the engine's stack.
const (
	frameFixed  = 384 // saved registers, return address, the meter's own code
	slotBytes   = 8
	slotsUsual  = 4  // values of most instructions: an address, its bound, a result
	slotsCall   = 6  // of a call, which also reads the memory's base and size again
	slotsSearch = 20 // of a call through a table
	slotsBulk   = 64 // of an instruction that compiles to a loop
)

// leafFrame is the largest frame that is not counted in a function without calls: there
// is only one such frame at a time.
const leafFrame = 16 << 10

// slots returns the number of values that an instruction can create, besides its
// results.
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

// frame returns a bound of the frame of the decoded function, in bytes.
func (f *bodyPass) frame(s signature) uint64 {
	// The engine moves the values that calls and branches carry once more.
	values := f.slots + f.merged + 2*f.carried + uint64(f.count) + 2*uint64(len(s.params)+len(s.results))
	return frameFixed + slotBytes*(values+uint64(f.passed))
}

// enclose appends the beginning of a function whose frame counts: the payment in ticks
// and in stack, and a block that every exit of the function leaves.
func (p *pass) enclose(b []byte, ticks, frame uint64, results []byte) []byte {
	fuel, stack := uint32(len(p.globals)), uint32(len(p.globals))+3
	b = appendU32(append(b, opGlobalGet), stack)
	b = appendSigned(append(b, opI64Const), int64(frame))
	b = appendU32(append(b, opI64Sub, opGlobalSet), stack)
	b = appendU32(append(b, opGlobalGet), fuel)
	b = appendSigned(append(b, opI64Const), int64(ticks))
	b = appendU32(append(b, opI64Sub, opGlobalSet), fuel)
	// Fuel or stack is below 0.
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

// leave appends the end of such a function, after the end of its block.
func (p *pass) leave(b []byte, frame uint64) []byte {
	stack := uint32(len(p.globals)) + 3
	b = appendU32(append(b, opGlobalGet), stack)
	b = appendSigned(append(b, opI64Const), int64(frame))
	b = appendU32(append(b, opI64Add, opGlobalSet), stack)
	return append(b, opEnd)
}

// resultType returns the index of a type without parameters and with these results.
func (p *pass) resultType(results []byte) int {
	for i, s := range p.types {
		if len(s.params) == 0 && string(s.results) == string(results) {
			return i
		}
	}
	first := len(p.types) + 1 // after the checkpoint's type
	for i, r := range p.blockTypes {
		if string(r) == string(results) {
			return first + i
		}
	}
	p.blockTypes = append(p.blockTypes, results)
	return first + len(p.blockTypes) - 1
}
