package meter

import "slices"

// A second way to count fuel: instructions that pay are inserted into the tree of a module before it is encoded. It was
// written from the cost model in the package comment, not from the code of Instrument, and pays at once, without
// slices and checkpoints.

// weigh returns the weight of a list in its segment, and sets the weights of loops.
func weigh(list []*ins) uint64 {
	var w uint64
	for _, in := range list {
		w++
		switch in.op {
		case 0x03:
			in.weight = weigh(in.body) + 1
		case 0x02:
			w += weigh(in.body) + 1
		case 0x04:
			w += weigh(in.body) + 1
			if in.other != nil {
				w += weigh(in.other) + 1
			}
		case 0x40, 0xd2:
			w += 63
		case 0xfc:
			if in.sub == 15 {
				w += 63
			}
		}
	}
	return w
}

// naive returns the module with instructions that pay from a global, exported as "fuel", and trap when it falls below 0.
func (m *module) naive(fuel int64) *module {
	out := *m
	out.fuel = true
	out.globals = append(slices.Clone(m.globals), global{typeI64, uint64(fuel)})
	out.functions = nil
	for _, f := range m.functions {
		p := payer{fuel: uint64(len(m.globals)), scratch: uint64(len(m.types[f.typ].params) + len(f.locals))}
		body := append(p.pay(i64(int64(1+(weigh(f.body)+1)/256))), p.list(f.body)...)
		out.functions = append(out.functions, &function{typ: f.typ, locals: append(slices.Clone(f.locals), typeI32), body: body})
	}
	return &out
}

// payer inserts the payments of one function, which has the local scratch for it.
type payer struct{ fuel, scratch uint64 }

// pay pays the i64 that the instructions push.
func (p payer) pay(ticks ...*ins) []*ins {
	return cat(one(op(0x23, p.fuel)), ticks, []*ins{op(0x7d), op(0x24, p.fuel),
		op(0x23, p.fuel), i64(0), op(0x53), cond([]*ins{op(0x00)}, nil)})
}

// list returns a copy of a list with payments before bulk instructions and at the head of each loop.
func (p payer) list(list []*ins) []*ins {
	if list == nil {
		return nil
	}
	out := []*ins{}
	for _, in := range list {
		paid := *in
		paid.body, paid.other = p.list(in.body), p.list(in.other)
		shift, bulk := map[uint32]int64{8: 10, 10: 10, 11: 10, 12: 7, 14: 7, 15: 7, 17: 7}[in.sub]
		switch {
		case in.op == 0x03:
			paid.body = append(p.pay(i64(int64(1+in.weight/256))), paid.body...)
		case in.op == 0xfc && bulk: // its last operand is the number of bytes or entries
			out = append(out, op(0x21, p.scratch))
			out = append(out, p.pay(op(0x20, p.scratch), op(0xad), i64(shift), op(0x88))...)
			out = append(out, op(0x20, p.scratch))
		}
		out = append(out, &paid)
	}
	return out
}
