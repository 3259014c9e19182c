package meter

import "unicode/utf8"

// maxNameBytes bounds a function's name in the name section. C++ and generic Go have long
// names.
const maxNameBytes = 4096

// checkpointName is the checkpoint's name in stack traces.
const checkpointName = "cs_checkpoint"

// custom keeps only the function names: debug information would be wrong after the
// instrumentation, and engines parse custom sections less carefully than code.
func (p *pass) custom(r *reader) {
	name := r.name()
	rest := r.part(uint32(r.left()))
	if r.err != nil || name != "name" || p.names != nil {
		return
	}
	p.names = p.functionNames(&rest)
}

// functionNames returns the names of functions as a custom section, nil if there are none
// or they are malformed: by the specification, a malformed custom section does not make
// the module invalid.
func (p *pass) functionNames(r *reader) []byte {
	for r.left() > 0 {
		id := r.byte()
		sub := r.part(r.u32())
		if r.err != nil {
			return nil
		}
		if id != 1 {
			continue
		}
		n := sub.count("names", maxFunctions)
		// The checkpoint gets a name, too.
		body := appendU32(nil, n+1)
		last := -1
		for range n {
			i := sub.u32()
			text := sub.bytes(sub.u32())
			if sub.err != nil || int64(i) <= int64(last) || uint64(i) >= uint64(len(p.funcs)) || len(text) > maxNameBytes || !utf8.Valid(text) {
				return nil
			}
			last = int(i)
			body = append(appendU32(appendU32(body, i), uint32(len(text))), text...)
		}
		if sub.left() > 0 || n == 0 {
			return nil
		}
		body = appendName(appendU32(body, uint32(len(p.funcs))), checkpointName)
		body = append(appendU32([]byte{1}, uint32(len(body))), body...)
		body = append(appendName(nil, "name"), body...)
		return append(appendU32([]byte{secCustom}, uint32(len(body))), body...)
	}
	return nil
}
