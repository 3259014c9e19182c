package meter

// An inner loop contains no other loop. The cost of metering matters most there, and most
// of it is the call of the checkpoint, even if it is not taken: the engine keeps no value
// in a register across a call, so a loop with a call at its head has all its live values
// in memory. Therefore an inner loop is enclosed by a second loop of the same type, and
// only that one calls the checkpoint:
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
// Each arrival at the loop pays as for any other loop. If the fuel is then below 0, the
// code branches to the outer loop before it does anything else, and returns after the
// checkpoint has provided new fuel; the outer loop refunds the second payment first.
//
// If nothing else in the loop can change the fuel, a local variable holds it as well, so
// that an iteration need not wait until the global of the last one is written and read.
// The global is still written in each iteration, so that it is right wherever the code
// traps.
//
// Branches are written so that the common path comes first: at a merge point the engine
// keeps each value where the first path left it, and moves those of other paths.

// loopSlots is the number of values that the code added to an inner loop can create.
const loopSlots = 32

// innerLoop holds the parameters of the code added to an inner loop.
type innerLoop struct {
	opening                    []byte // opcode and type
	takes                      bool   // the loop has parameters
	fuel, checkpoint, register uint32
	ticks                      uint64
}

// appendCalling appends the beginning of an inner loop that contains calls.
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

// appendQuiet appends the beginning of an inner loop in which nothing else changes the
// fuel.
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

// call appends a call of the checkpoint if the fuel on the stack is below 0, and leaves
// that branch open.
func (l innerLoop) call(b []byte) []byte {
	b = append(b, opI64Const, 0, opI64GeS, opIf, blockEmpty, opElse)
	return appendU32(append(b, opCall), l.checkpoint)
}

// out appends a branch to the outer loop if the fuel on the stack is below 0.
func (l innerLoop) out(b []byte) []byte {
	if l.takes { // the parameters cannot be reached from inside an if
		return append(b, opI64Const, 0, opI64LtS, opBrIf, 1)
	}
	return append(b, opI64Const, 0, opI64GeS, opIf, blockEmpty, opElse, opBr, 2, opEnd)
}
