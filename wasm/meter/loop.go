package meter

// An inner loop is one without loops in it. What it costs matters most there, and
// what costs most is the call of the checkpoint, taken or not: an engine keeps no
// value in a register across a call, so that a loop with one at its head has all
// that lives through it in memory. So an inner loop stands in a second one of the
// same type, which is all that calls the checkpoint:
//
//	loop
//	  fuel ≥ 0  if  else  call checkpoint    fuel = fuel + ticks  end
//	  loop
//	    fuel = fuel − ticks
//	    fuel ≥ 0  if  else  br 2  end
//	    … the loop's body
//	  end
//	end
//
// Whoever arrives at the loop pays as at any other. If that leaves the fuel below
// 0, the way leads to the outer loop before anything else is done, and back, after
// the checkpoint gave new fuel; the second payment is given back before.
//
// If nothing else in the loop can change the fuel, it is in a local, too, so that
// a round need not wait for the last one's to be written and read. The global is
// written each round all the same: it is right whatever traps.
//
// Branches are written so that the usual way comes first. Where ways meet, the
// engine has each value where the first one left it, and moves those of others.

// loopSlots is how many values the additions for an inner loop can make.
const loopSlots = 32

// innerLoop is what the additions need to know.
type innerLoop struct {
	opening                    []byte // opcode and type
	takes                      bool   // values
	fuel, checkpoint, register uint32
	ticks                      uint64
}

// appendCalling appends the beginning of an inner loop with calls.
func (l innerLoop) appendCalling(b []byte) []byte {
	b = append(b, l.opening...)
	b = l.call(l.get(b))
	b = l.amount(l.get(b))
	b = l.set(append(b, opI64Add))
	b = append(append(b, opEnd), l.opening...)
	b = l.amount(l.get(b))
	b = l.set(append(b, opI64Sub))
	return l.out(l.get(b))
}

// appendQuiet appends that of one in which nothing else changes the fuel.
func (l innerLoop) appendQuiet(b []byte) []byte {
	local := func(op byte) { b = appendU32(append(b, op), l.register) }
	b = l.get(b)
	local(opLocalSet)
	b = append(b, l.opening...)
	local(opLocalGet)
	b = l.call(b)
	b = append(l.amount(l.get(b)), opI64Add)
	local(opLocalSet)
	b = append(append(b, opEnd), l.opening...)
	local(opLocalGet)
	b = append(l.amount(b), opI64Sub)
	local(opLocalTee)
	b = l.set(b)
	local(opLocalGet)
	return l.out(b)
}

func (l innerLoop) get(b []byte) []byte { return appendU32(append(b, opGlobalGet), l.fuel) }
func (l innerLoop) set(b []byte) []byte { return appendU32(append(b, opGlobalSet), l.fuel) }
func (l innerLoop) amount(b []byte) []byte {
	return appendSigned(append(b, opI64Const), int64(l.ticks))
}

// call appends the call of the checkpoint, if the fuel on the stack is below 0,
// and leaves that branch open.
func (l innerLoop) call(b []byte) []byte {
	b = append(b, opI64Const, 0, opI64GeS, opIf, blockEmpty, opElse)
	return appendU32(append(b, opCall), l.checkpoint)
}

// out appends the way to the outer loop, if the fuel on the stack is below 0.
func (l innerLoop) out(b []byte) []byte {
	if l.takes { // from inside an if they are out of reach
		return append(b, opI64Const, 0, opI64LtS, opBrIf, 1)
	}
	return append(b, opI64Const, 0, opI64GeS, opIf, blockEmpty, opElse, opBr, 2, opEnd)
}
