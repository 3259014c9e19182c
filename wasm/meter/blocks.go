package meter

// block is an open block, loop or if, or the function itself.
type block struct {
	op      byte   // opBlock, opLoop, opIf, or opElse after the else; opBlock for the function
	segment int    // the segment to which its instructions count
	loops   uint64 // number of open loops, itself included
	carries int    // number of values that a branch to it carries
	sets    uint64 // assignments to locals in the function before it
}

// open copies the type of a block and pushes the block.
func (p *pass) open(r *reader, op byte, at, in int) {
	f := &p.body
	// One block is the function itself.
	if len(f.blocks) > maxDepth {
		r.fail(at, limit("nested blocks", uint64(len(f.blocks)), maxDepth))
		return
	}
	start := len(f.code) - 1
	var s signature
	switch t := r.byte(); {
	case t == blockEmpty:
		f.code = append(f.code, t)
	case t > blockEmpty && t < 0x80:
		r.at--
		s.results = []byte{r.valueType()}
		f.code = append(f.code, s.results[0])
	default:
		if r.err == nil {
			r.at--
		}
		t := r.signed(33)
		if r.err == nil && (t < 0 || t >= int64(len(p.types))) {
			r.fail(at, "the type of the block does not exist")
		}
		if r.err == nil {
			s = p.types[t]
		}
		f.code = appendSigned(f.code, t)
	}
	loops := f.blocks[len(f.blocks)-1].loops
	carries := len(s.results)
	f.joins++
	f.carried += uint64(len(s.params) + len(s.results))
	if op == opLoop {
		carries = len(s.params)
		loops++
		f.joins += loopJoins*loops - 1
		f.carried += uint64(2*len(s.params) + len(s.results)) // of the second one
		in = len(f.segments)
		f.inner, f.outward = in, f.outward[:0]
		f.segments = append(f.segments, segment{before: start, at: len(f.code), takes: carries > 0})
		p.report.Loops++
	}
	f.blocks = append(f.blocks, block{op, in, loops, carries, f.sets})
	p.report.Depth = max(p.report.Depth, len(f.blocks)-1)
}

// label decodes the target of a branch.
func (f *bodyPass) label(r *reader) uint32 {
	i := r.index("label", len(f.blocks))
	if r.err == nil {
		f.carried += uint64(f.blocks[len(f.blocks)-1-int(i)].carries)
	}
	return i
}

// branch appends the label of a branch.
func (f *bodyPass) branch(label uint32) {
	if last := len(f.blocks) - 1; f.inner > 0 && f.blocks[last-int(label)].loops < f.blocks[last].loops {
		f.outward = append(f.outward, len(f.code))
	}
	f.code = appendU32(f.code, label)
}

// closeLoop is called after a loop's end. For an inner loop it adds the end of the
// enclosing loop.
func (f *bodyPass) closeLoop(l *block) {
	if f.inner != l.segment {
		return
	}
	f.inner = 0
	f.segments[l.segment].inner = true
	f.quiet = f.quiet || !f.segments[l.segment].calls
	f.joins += loopJoins*(l.loops+1) + 2
	f.merged += min(f.sets-l.sets, uint64(f.count))
	f.slots += loopSlots
	f.deepen()
	f.code = append(f.code, opEnd)
}

// deepen increments the labels that lead out of the loop. Their encodings can become a
// byte longer, which moves the code after them.
func (f *bodyPass) deepen() {
	if len(f.outward) == 0 {
		return
	}
	done := f.outward[0]
	f.moved = append(f.moved[:0], f.code[done:]...)
	was := reader{b: f.moved, end: len(f.moved)}
	f.code = f.code[:done]
	for _, at := range f.outward {
		f.code = append(f.code, was.bytes(uint32(at-done))...)
		start := was.at
		f.code = appendU32(f.code, was.u32()+1)
		done = at + was.at - start
	}
	f.code = append(f.code, f.moved[was.at:]...)
}
