package meter

// Types of values, and the form of a function type.
const (
	typeI32       = 0x7f
	typeI64       = 0x7e
	typeF32       = 0x7d
	typeF64       = 0x7c
	typeV128      = 0x7b
	typeFuncref   = 0x70
	typeExternref = 0x6f
	formFunction  = 0x60
	blockEmpty    = 0x40
)

// The opcodes that the pass looks at or writes.
const (
	opUnreachable  = 0x00
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opElse         = 0x05
	opEnd          = 0x0b
	opBr           = 0x0c
	opBrIf         = 0x0d
	opBrTable      = 0x0e
	opReturn       = 0x0f
	opCall         = 0x10
	opCallIndirect = 0x11
	opDrop         = 0x1a
	opSelect       = 0x1b
	opSelectTyped  = 0x1c
	opLocalGet     = 0x20
	opLocalSet     = 0x21
	opLocalTee     = 0x22
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opTableGet     = 0x25
	opTableSet     = 0x26
	opMemorySize   = 0x3f
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI64Const     = 0x42
	opF32Const     = 0x43
	opF64Const     = 0x44
	opI64Ne        = 0x52
	opI64LtS       = 0x53
	opI64GeS       = 0x59
	opI32ShrU      = 0x76
	opI64Add       = 0x7c
	opI64Sub       = 0x7d
	opI64Or        = 0x84
	opI64ExtendU   = 0xad
	opRefNull      = 0xd0
	opRefFunc      = 0xd2
	opPrefix       = 0xfc
)

// The opcodes behind opPrefix. Those below are saturating truncations.
const (
	subMemoryInit = 8
	subDataDrop   = 9
	subMemoryCopy = 10
	subMemoryFill = 11
	subTableInit  = 12
	subElemDrop   = 13
	subTableCopy  = 14
	subTableGrow  = 15
	subTableSize  = 16
	subTableFill  = 17
)

// alignment returns log2 of the width of a load or store, 0x28 to 0x3e.
func alignment(op byte) uint32 {
	const widths = "\x02\x03\x02\x03\x00\x00\x01\x01\x00\x00\x01\x01\x02\x02" + // loads
		"\x02\x03\x02\x03\x00\x01\x00\x01\x02" // stores
	return uint32(widths[op-0x28])
}

// plain reports whether an opcode has no immediate and needs no thought:
// unreachable, nop, drop, select, arithmetic, ref.is_null.
func plain(op byte) bool {
	switch {
	case op <= 0x01, op == opDrop, op == opSelect, op == 0xd1:
		return true
	}
	return op >= 0x45 && op <= 0xc4
}

// forbidden says what an opcode that is not accepted belongs to.
func forbidden(op byte) string {
	switch {
	case op >= 0x06 && op <= 0x0a, op == 0x18, op == 0x19, op == 0x1f:
		return "exceptions are not allowed: opcode " + hexByte(op)
	case op == 0x12 || op == 0x13:
		return "tail calls are not allowed: opcode " + hexByte(op)
	case op == 0x14 || op == 0x15 || op >= 0xd3 && op <= 0xd6 || op == 0xfb:
		return "typed references and garbage collection are not allowed: opcode " + hexByte(op)
	case op == 0xfd:
		return "vectors (SIMD) are not allowed: opcode " + hexByte(op)
	case op == 0xfe:
		return "threads are not allowed: opcode " + hexByte(op)
	}
	return "unknown opcode " + hexByte(op)
}
