package meter

import "math/bits"

// appendTake appends code that subtracts the amount on top of the stack from the fuel
// global, whose value was pushed before it, and calls the checkpoint if the fuel is then
// below 0.
func appendTake(b []byte, fuel, checkpoint uint32) []byte {
	b = append(b, opI64Sub)
	b = appendU32(append(b, opGlobalSet), fuel)
	b = appendU32(append(b, opGlobalGet), fuel)
	b = append(b, opI64Const, 0, opI64GeS, opIf, blockEmpty, opElse)
	b = appendU32(append(b, opCall), checkpoint)
	return append(b, opEnd)
}

// appendCharge appends code that pays for a segment.
func appendCharge(b []byte, fuel, checkpoint uint32, ticks uint64) []byte {
	b = appendU32(append(b, opGlobalGet), fuel)
	b = appendSigned(append(b, opI64Const), int64(ticks))
	return appendTake(b, fuel, checkpoint)
}

// appendFill appends code that pays for an instruction whose length is on top of the
// stack, and leaves the length there. Short lengths cost nothing.
func appendFill(b []byte, fuel, checkpoint, scratch uint32, scale int) []byte {
	b = appendU32(append(b, opLocalTee), scratch)
	b = appendU32(append(b, opLocalGet), scratch)
	b = append(b, opI32Const, byte(bits.Len(uint(scale))-1), opI32ShrU)
	b = appendU32(append(b, opLocalTee), scratch)
	b = append(b, opIf, blockEmpty)
	b = appendU32(append(b, opGlobalGet), fuel)
	b = append(appendU32(append(b, opLocalGet), scratch), opI64ExtendU)
	b = appendTake(b, fuel, checkpoint)
	return append(b, opEnd)
}

// append appends the meter to the module: types, the four globals and their exports, and
// the checkpoint.
func (p *pass) append() {
	add := func(id byte, item []byte) {
		p.out[id].b = append(p.out[id].b, item...)
		p.out[id].n++
	}
	fuel := uint32(len(p.globals))
	budget, kill, stack := fuel+1, fuel+2, fuel+3

	add(secType, []byte{formFunction, 0, 0})
	for _, results := range p.blockTypes {
		add(secType, append(appendU32([]byte{formFunction, 0}, uint32(len(results))), results...))
	}
	add(secFunction, appendU32(nil, uint32(len(p.types))))
	now, later := Split(p.config.StartFuel, p.config.Slice)
	for i, g := range [...]struct {
		name  string
		value uint64
	}{{FuelExport, now}, {BudgetExport, later}, {KillExport, 0}, {StackExport, uint64(p.config.Stack)}} {
		add(secGlobal, append(appendSigned([]byte{typeI64, 1, opI64Const}, int64(g.value)), opEnd))
		add(secExport, appendU32(append(appendName(nil, g.name), kindGlobal), fuel+uint32(i)))
	}
	code := checkpointCode(fuel, budget, kill, stack, p.config.Slice)
	add(secCode, append(appendU32(nil, uint32(len(code))), code...))
}

// checkpointCode returns the body of the checkpoint function.
func checkpointCode(fuel, budget, kill, stack uint32, slice int64) []byte {
	get := func(b []byte, g uint32) []byte { return appendU32(append(b, opGlobalGet), g) }
	set := func(b []byte, g uint32) []byte { return appendU32(append(b, opGlobalSet), g) }

	b := []byte{1, 1, typeI64} // local 0: fuel + budget
	// Return to Go and back. It is a property of the engine that this instruction
	// leaves the compiled code; TestRunawayLetsGoCollect checks it.
	b = append(b, opI32Const, 0, opMemoryGrow, 0, opDrop)
	b = append(get(b, kill), opI64Const, 0, opI64Ne, opIf, blockEmpty, opUnreachable, opEnd)
	b = append(get(b, stack), opI64Const, 0, opI64LtS, opIf, blockEmpty, opUnreachable, opEnd)
	b = append(get(get(b, budget), fuel), opI64Add, opLocalTee, 0)
	b = append(b, opI64Const, 0, opI64LtS, opIf, blockEmpty)
	// Out of fuel: the debt stays in the fuel global, so that Left is below 0.
	b = set(append(b, opLocalGet, 0), fuel)
	b = set(append(b, opI64Const, 0), budget)
	b = append(b, opUnreachable, opEnd)
	// fuel = min(left, slice); budget = left − fuel.
	b = append(b, opLocalGet, 0)
	b = appendSigned(append(b, opI64Const), slice)
	b = append(b, opLocalGet, 0)
	b = appendSigned(append(b, opI64Const), slice)
	b = set(append(b, opI64LtS, opSelect), fuel)
	b = get(append(b, opLocalGet, 0), fuel)
	b = set(append(b, opI64Sub), budget)
	return append(b, opEnd)
}
