package meter

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"slices"
)

// A reference interpreter. It is small and slow, and was written from the specification and the
// cost model in the package comment, not from the code of Instrument. It runs generated and
// hand-written modules.

var (
	errFuel        = errors.New("out of fuel")
	errUnreachable = errors.New("unreachable")
	errMemory      = errors.New("out of bounds memory access")
	errTable       = errors.New("invalid table access")
	errType        = errors.New("indirect call type mismatch")
	errDivide      = errors.New("integer divide by zero")
	errOverflow    = errors.New("integer overflow")
)

type machine struct {
	m        *module
	memory   []byte
	globals  []uint64
	table    []int64
	dropped  []bool // data
	dropElem []bool
	fuel     int64
	stack    []uint64
	depth    int
}

// maxCallDepth keeps the interpreter from exhausting Go's stack. The tests give too little fuel
// to reach it.
const maxCallDepth = 200_000

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

func newMachine(m *module, fuel int64) *machine {
	v := &machine{m: m, memory: make([]byte, int(m.pages)<<16), table: slices.Clone(m.table), fuel: fuel,
		dropped: make([]bool, len(m.data)), dropElem: make([]bool, len(m.elements))}
	for _, g := range m.globals {
		v.globals = append(v.globals, g.value)
	}
	for _, f := range m.functions {
		f.weight = weigh(f.body) + 1
	}
	return v
}

func (v *machine) pay(ticks uint64) {
	v.fuel -= int64(ticks)
	if v.fuel < 0 {
		panic(errFuel)
	}
}

func (v *machine) push(x uint64)  { v.stack = append(v.stack, x) }
func (v *machine) push32(x int32) { v.push(uint64(uint32(x))) }
func (v *machine) pop() uint64 {
	x := v.stack[len(v.stack)-1]
	v.stack = v.stack[:len(v.stack)-1]
	return x
}
func (v *machine) pop32() uint32 { return uint32(v.pop()) }
func (v *machine) popf() float64 { return math.Float64frombits(v.pop()) }
func (v *machine) bool(b bool) {
	if b {
		v.push(1)
	} else {
		v.push(0)
	}
}

// call runs a function and returns its results. The error is one of those above.
func (v *machine) call(f uint32, args ...uint64) (results []uint64, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(error)
			if _, internal := r.(interface{ RuntimeError() }); !ok || internal {
				panic(r)
			}
			results, err = nil, e
		}
	}()
	v.stack = append(v.stack[:0], args...)
	v.invoke(f)
	return slices.Clone(v.stack), nil
}

func (v *machine) invoke(f uint32) {
	if f < uint32(len(v.m.imports)) {
		return // imports are of type 0, which takes and returns nothing then
	}
	if v.depth++; v.depth > maxCallDepth {
		panic("internal error: too deep for the reference")
	}
	defer func() { v.depth-- }()
	fn := v.m.functions[f-uint32(len(v.m.imports))]
	t := v.m.types[fn.typ]
	locals := make([]uint64, len(t.params)+len(fn.locals))
	base := len(v.stack) - len(t.params)
	copy(locals, v.stack[base:])
	v.stack = v.stack[:base]
	v.pay(1 + fn.weight/256)
	v.run(fn.body, locals)
	n := len(t.results)
	results := slices.Clone(v.stack[len(v.stack)-n:])
	v.stack = append(v.stack[:base], results...)
}

const (
	next = -1
	ret  = 1 << 30
)

// run executes a list; it returns next, ret, or how many blocks to leave.
func (v *machine) run(list []*ins, locals []uint64) int {
	for _, in := range list {
		if to := v.step(in, locals); to != next {
			return to
		}
	}
	return next
}

// leave ends a block whose body returned to, with its result on top.
func (v *machine) leave(to, height int, result byte) int {
	if to == next || to == ret {
		return to
	}
	if to > 0 {
		return to - 1
	}
	if result != 0 {
		x := v.pop()
		v.stack = append(v.stack[:height], x)
	} else {
		v.stack = v.stack[:height]
	}
	return next
}

func (v *machine) at(offset uint64, n uint64) []byte {
	a := uint64(v.pop32()) + offset
	if a+n > uint64(len(v.memory)) {
		panic(errMemory)
	}
	return v.memory[a : a+n]
}

func (v *machine) step(in *ins, locals []uint64) int {
	switch in.op {
	case 0x00:
		panic(errUnreachable)
	case 0x01:
	case 0x02:
		height := len(v.stack)
		return v.leave(v.run(in.body, locals), height, in.result)
	case 0x03:
		height := len(v.stack)
		for {
			v.pay(1 + in.weight/256)
			to := v.run(in.body, locals)
			if to != 0 {
				return v.leave(to, height, in.result)
			}
			v.stack = v.stack[:height]
		}
	case 0x04:
		body := in.other
		if v.pop32() != 0 {
			body = in.body
		}
		height := len(v.stack)
		return v.leave(v.run(body, locals), height, in.result)
	case 0x0c:
		return int(in.imm[0])
	case 0x0d:
		if v.pop32() != 0 {
			return int(in.imm[0])
		}
	case 0x0e:
		i := min(uint64(v.pop32()), uint64(len(in.imm)-1))
		return int(in.imm[i])
	case 0x0f:
		return ret
	case 0x10:
		v.invoke(uint32(in.imm[0]))
	case 0x11:
		i := v.pop32()
		if uint64(i) >= uint64(len(v.table)) || v.table[i] < 0 {
			panic(errTable)
		}
		f := uint32(v.table[i])
		have := v.m.types[0]
		if n := uint32(len(v.m.imports)); f >= n {
			have = v.m.types[v.m.functions[f-n].typ]
		}
		want := v.m.types[in.imm[0]]
		if string(have.params) != string(want.params) || string(have.results) != string(want.results) {
			panic(errType)
		}
		v.invoke(f)
	case 0x1a:
		v.pop()
	case 0x1b:
		c, b, a := v.pop32(), v.pop(), v.pop()
		if c != 0 {
			b = a
		}
		v.push(b)
	case 0x20:
		v.push(locals[in.imm[0]])
	case 0x21:
		locals[in.imm[0]] = v.pop()
	case 0x22:
		locals[in.imm[0]] = v.stack[len(v.stack)-1]
	case 0x23:
		v.push(v.globals[in.imm[0]])
	case 0x24:
		v.globals[in.imm[0]] = v.pop()
	case 0x28:
		v.push(uint64(binary.LittleEndian.Uint32(v.at(in.imm[1], 4))))
	case 0x29:
		v.push(binary.LittleEndian.Uint64(v.at(in.imm[1], 8)))
	case 0x2d:
		v.push(uint64(v.at(in.imm[1], 1)[0]))
	case 0x2e:
		v.push32(int32(int16(binary.LittleEndian.Uint16(v.at(in.imm[1], 2)))))
	case 0x36:
		x := v.pop32()
		binary.LittleEndian.PutUint32(v.at(in.imm[1], 4), x)
	case 0x37:
		x := v.pop()
		binary.LittleEndian.PutUint64(v.at(in.imm[1], 8), x)
	case 0x3a:
		x := v.pop32()
		v.at(in.imm[1], 1)[0] = byte(x)
	case 0x3f:
		v.push(uint64(len(v.memory) >> 16))
	case 0x40:
		n, old := uint64(v.pop32()), uint64(len(v.memory)>>16)
		if old+n > uint64(v.m.maxPages) {
			v.push32(-1)
		} else {
			v.memory = append(v.memory, make([]byte, n<<16)...)
			v.push(old)
		}
	case 0x41, 0x42, 0x44:
		v.push(in.imm[0])
	case 0xd0:
		v.push(math.MaxUint64)
	case 0xd1:
		v.bool(v.pop() == math.MaxUint64)
	case 0xd2:
		v.push(in.imm[0])
	case 0xfc:
		v.prefixed(in)
	default:
		v.arithmetic(in.op)
	}
	return next
}

func (v *machine) prefixed(in *ins) {
	switch in.sub {
	case 2, 6: // i32, i64.trunc_sat_f64_s
		x := v.popf()
		lo, hi := float64(math.MinInt32), float64(math.MaxInt32)
		if in.sub == 6 {
			lo, hi = math.MinInt64, math.MaxInt64
		}
		var r int64
		switch {
		case x != x:
		case x <= lo:
			r = int64(lo)
		case x >= hi && in.sub == 2:
			r = math.MaxInt32
		case x >= hi:
			r = math.MaxInt64
		default:
			r = int64(x)
		}
		if in.sub == 2 {
			v.push32(int32(r))
		} else {
			v.push(uint64(r))
		}
	case 8: // memory.init
		n, s, d := uint64(v.pop32()), uint64(v.pop32()), uint64(v.pop32())
		v.pay(n / 1024)
		data := v.m.data[in.imm[0]]
		if v.dropped[in.imm[0]] {
			data = nil
		}
		if s+n > uint64(len(data)) || d+n > uint64(len(v.memory)) {
			panic(errMemory)
		}
		copy(v.memory[d:], data[s:s+n])
	case 9:
		v.dropped[in.imm[0]] = true
	case 10, 11:
		n, s, d := uint64(v.pop32()), v.pop(), uint64(v.pop32())
		v.pay(n / 1024)
		if s := uint64(uint32(s)); in.sub == 10 && s+n > uint64(len(v.memory)) || d+n > uint64(len(v.memory)) {
			panic(errMemory)
		}
		if in.sub == 10 {
			copy(v.memory[d:d+n], v.memory[uint32(s):])
			return
		}
		for i := range n {
			v.memory[d+i] = byte(s)
		}
	case 12: // table.init
		n, s, d := uint64(v.pop32()), uint64(v.pop32()), uint64(v.pop32())
		v.pay(n / 128)
		list := v.m.elements[in.imm[0]]
		if v.dropElem[in.imm[0]] {
			list = nil
		}
		if s+n > uint64(len(list)) || d+n > uint64(len(v.table)) {
			panic(errTable)
		}
		for i := range n {
			v.table[d+i] = int64(list[s+i])
		}
	case 13:
		v.dropElem[in.imm[0]] = true
	case 14:
		n, s, d := uint64(v.pop32()), uint64(v.pop32()), uint64(v.pop32())
		v.pay(n / 128)
		if s+n > uint64(len(v.table)) || d+n > uint64(len(v.table)) {
			panic(errTable)
		}
		copy(v.table[d:d+n], v.table[s:])
	case 15:
		n, x, old := uint64(v.pop32()), v.pop(), len(v.table)
		v.pay(n / 128)
		if uint64(old)+n > uint64(v.m.tableMax) {
			v.push32(-1)
			return
		}
		for range n {
			v.table = append(v.table, int64(x))
		}
		v.push(uint64(old))
	case 16:
		v.push(uint64(len(v.table)))
	case 17:
		n, x, d := uint64(v.pop32()), v.pop(), uint64(v.pop32())
		v.pay(n / 128)
		if d+n > uint64(len(v.table)) {
			panic(errTable)
		}
		for i := range n {
			v.table[d+i] = int64(x)
		}
	default:
		panic("internal error: the reference does not know this instruction")
	}
}

func (v *machine) arithmetic(op byte) {
	switch {
	case op == 0x45:
		v.bool(v.pop32() == 0)
	case op == 0x50:
		v.bool(v.pop() == 0)
	case op >= 0x46 && op <= 0x4f:
		b, a := v.pop32(), v.pop32()
		v.bool(compare(op-0x46, int64(int32(a)), int64(int32(b)), uint64(a), uint64(b)))
	case op >= 0x51 && op <= 0x5a:
		b, a := v.pop(), v.pop()
		v.bool(compare(op-0x51, int64(a), int64(b), a, b))
	case op == 0x63: // f64.lt
		b, a := v.popf(), v.popf()
		v.bool(a < b)
	case op == 0x67:
		v.push32(int32(bits.LeadingZeros32(v.pop32())))
	case op == 0x69:
		v.push32(int32(bits.OnesCount32(v.pop32())))
	case op >= 0x6a && op <= 0x78:
		b, a := v.pop32(), v.pop32()
		v.push32(int32(integer(op-0x6a, int64(int32(a)), int64(int32(b)), uint64(a), uint64(b), 32)))
	case op >= 0x7c && op <= 0x8a:
		b, a := v.pop(), v.pop()
		v.push(integer(op-0x7c, int64(a), int64(b), a, b, 64))
	case op == 0xa0, op == 0xa2: // f64.add, f64.mul
		b, a := v.popf(), v.popf()
		if op == 0xa0 {
			v.push(math.Float64bits(a + b))
		} else {
			v.push(math.Float64bits(a * b))
		}
	case op == 0xa7:
		v.push32(int32(v.pop()))
	case op == 0xac:
		v.push(uint64(int64(int32(v.pop32()))))
	case op == 0xad:
		v.push(uint64(v.pop32()))
	case op == 0xb7: // f64.convert_i32_s
		v.push(math.Float64bits(float64(int32(v.pop32()))))
	case op == 0xc0: // i32.extend8_s
		v.push32(int32(int8(v.pop32())))
	default:
		panic("internal error: the reference does not know this opcode")
	}
}

func compare(k byte, a, b int64, ua, ub uint64) bool {
	return [...]bool{a == b, a != b, a < b, ua < ub, a > b, ua > ub, a <= b, ua <= ub, a >= b, ua >= ub}[k]
}

func integer(k byte, a, b int64, ua, ub uint64, width uint) uint64 {
	switch k {
	case 0:
		return uint64(a + b)
	case 1:
		return uint64(a - b)
	case 2:
		return uint64(a * b)
	case 3, 4, 5, 6:
		if ub == 0 {
			panic(errDivide)
		}
		least := int64(-1) << (width - 1)
		switch {
		case k == 3 && a == least && b == -1:
			panic(errOverflow)
		case k == 3:
			return uint64(a / b)
		case k == 4:
			return ua / ub
		case k == 5 && b == -1:
			return 0
		case k == 5:
			return uint64(a % b)
		}
		return ua % ub
	case 7:
		return ua & ub
	case 8:
		return ua | ub
	case 9:
		return ua ^ ub
	}
	n := uint(ub) % width
	switch k {
	case 10:
		return ua << n
	case 11:
		return uint64(a >> n)
	case 12:
		return ua >> n
	case 13:
		return ua<<n | ua>>(width-n)
	}
	return ua>>n | ua<<(width-n)
}
