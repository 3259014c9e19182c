package meter

import (
	"context"
	"fmt"
	"testing"
)

// checkpoints are slice lengths that put the checkpoint into every round, into some rounds, and
// into none.
var checkpoints = []int64{1, 2, 3, DefaultSlice}

// everywhere runs a module unchanged and instrumented, for several slices and with every fuel
// from none to enough. It checks that the results are equal, that the call consumes the
// expected fuel, and that a call with less fuel ends.
func everywhere(t *testing.T, name string, m *module, want int64, args ...uint64) {
	t.Helper()
	ctx := context.Background()
	e := newEngine(t)
	plain, err := e.instance(m.encode())
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	result, err := plain.ExportedFunction("run").Call(ctx, args...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, slice := range checkpoints {
		a := e.metered(t, m.encode(), Config{Slice: slice})
		for fuel := range want + 2 {
			a.give(fuel)
			got, err := a.ExportedFunction("run").Call(ctx, args...)
			switch {
			case fuel < want:
				if trapOf(err) != unreachable || a.left() >= 0 {
					t.Fatalf("%s: slice %d, fuel %d: %v, %d ticks left", name, slice, fuel, err, a.left())
				}
			case err != nil || fmt.Sprint(got) != fmt.Sprint(result) || a.left() != fuel-want:
				t.Fatalf("%s: slice %d, fuel %d: %v, %v, %d ticks left; want %v, %d", name, slice, fuel, got, err, a.left(), result, fuel-want)
			}
		}
	}
}

// taking returns a loop that takes a counter and a sum, and returns them; more is executed in
// each round.
func taking(more ...*ins) *module {
	const n, sum = 0, 1
	types := []byte{typeI32, typeI64}
	m := single(types[:1], types, []byte{typeI64})
	m.types = append(m.types, signature{types, types}, signature{nil, nil})
	body := append([]*ins{
		op(0x21, sum), op(0x21, n),
		op(0x20, n), i32(1), op(0x6b), op(0x22, n),
		op(0x20, sum), op(0x20, n), op(0xad), op(0x7c)}, more...)
	body = append(body, op(0x20, n), op(0x0d, 0))
	m.functions[0].body = []*ins{op(0x20, n), op(0x42, 5), {op: 0x03, result: 1, body: body}} // a type index
	m.functions = append(m.functions, &function{typ: 2})
	return m
}

// TestLoopsTakeValues checks that the parameters of a loop are intact after a checkpoint.
func TestLoopsTakeValues(t *testing.T) {
	everywhere(t, "quiet", taking(), 1+9, 9)
	everywhere(t, "calling", taking(op(0x10, 1)), 1+2*9, 9)
	everywhere(t, "filling", taking(i32(0), i32(1), i32(2048), fc(11, 0)), 1+3*9, 9)
	everywhere(t, "growing", taking(i32(0), op(0x40, 0), op(0x1a)), 1+9, 9)
	everywhere(t, "around another", taking(loop(op(0x01))), 1+2*9, 9)
}

// TestWaysOutOfLoops checks that all kinds of branches out of an inner loop have the same target
// as before, also across so many blocks that their labels are a byte longer.
func TestWaysOutOfLoops(t *testing.T) {
	const n, i, after = 0, 1, 2
	for _, depth := range []int{0, 1, 61, 62, 63, 64, 124, 125, 126, 127, 128, 129, 300} {
		for _, way := range []struct {
			name string
			out  []*ins
		}{
			{"br_if", []*ins{op(0x20, i), i32(5), op(0x46), op(0x0d, uint64(depth)+1)}},
			{"br", []*ins{op(0x20, i), i32(5), op(0x46), cond([]*ins{op(0x0c, uint64(depth)+2)}, nil)}},
			{"return", []*ins{op(0x20, i), i32(5), op(0x46), cond([]*ins{i32(77), op(0x0f)}, nil)}},
			// 0 to 4 repeat the loop, 5 branches far out, more branch out of the loop.
			{"br_table", []*ins{op(0x20, i), op(0x0e, 0, 0, 0, 0, 0, uint64(depth)+1, 1)}},
		} {
			body := append([]*ins{op(0x20, i), i32(1), op(0x6a), op(0x21, i)}, way.out...)
			body = one(loop(append(body, op(0x20, i), op(0x20, n), op(0x49), op(0x0d, 0))...))
			for range depth {
				body = append(body, op(0x20, after), i32(1), op(0x6a), op(0x21, after))
				body = one(&ins{op: 0x02, body: body})
			}
			// As deep as it is, the loop is in one block more; what follows counts
			// the blocks that were left by their ends.
			m := single([]byte{typeI32}, []byte{typeI32}, []byte{typeI32, typeI32},
				&ins{op: 0x02, body: body}, op(0x20, i), i32(1000), op(0x6c), op(0x20, after), op(0x6a))
			m.functions[0].weight = weigh(m.functions[0].body) + 1
			entry := int64(1 + m.functions[0].weight/SegmentWeight)
			everywhere(t, fmt.Sprintf("%s out of %d blocks, taken", way.name, depth), m, entry+5, 9)
			if way.name != "br_table" {
				everywhere(t, fmt.Sprintf("%s out of %d blocks, not taken", way.name, depth), m, entry+3, 3)
			}
		}
	}
}

// TestTrapsInLoopsFindTheFuel checks that the remaining fuel after a trap is exact, although the
// loop keeps it where the host cannot read it.
func TestTrapsInLoopsFindTheFuel(t *testing.T) {
	e := newEngine(t)
	// Stores at 8·i, until the end of the memory.
	m := single([]byte{typeI32}, nil, nil, loop(
		op(0x20, 0), op(0x42, 1), op(0x37, 3, 0),
		op(0x20, 0), i32(1024), op(0x6a), op(0x21, 0), op(0x0c, 0)))
	for _, slice := range checkpoints {
		a := e.metered(t, m.encode(), Config{Slice: slice})
		a.give(500)
		_, err := a.ExportedFunction("run").Call(context.Background(), 4096)
		if trapOf(err) != outOfBounds || a.left() != 500-1-61 {
			t.Errorf("slice %d: %v, %d ticks left, want %d", slice, err, a.left(), 500-1-61)
		}
	}
}

// TestLoopsInLoops checks that the fuel of nested loops does not change, wherever they contain a
// call.
func TestLoopsInLoops(t *testing.T) {
	down := func(l uint64, body ...*ins) *ins { // local l from 3 to 0
		return &ins{op: 0x02, body: []*ins{i32(3), op(0x21, l), loop(append(body, op(0x20, l), i32(1), op(0x6b), op(0x22, l), op(0x0d, 0))...)}}
	}
	call := op(0x10, 1)
	for name, c := range map[string]struct {
		body []*ins
		want int64
	}{
		"two":                  {[]*ins{down(1, down(2))}, 1 + 3 + 9},
		"three":                {[]*ins{down(1, down(2, down(3)))}, 1 + 3 + 9 + 27},
		"call inside":          {[]*ins{down(1, down(2, call))}, 1 + 3 + 9 + 9},
		"call between":         {[]*ins{down(1, down(2), call)}, 1 + 3 + 9 + 3},
		"call before":          {[]*ins{down(1, call, down(2))}, 1 + 3 + 9 + 3},
		"one after another":    {[]*ins{down(1), down(2), call, down(3)}, 1 + 3 + 3 + 1 + 3},
		"two in one":           {[]*ins{down(1, down(2), down(3, call))}, 1 + 3 + 9 + 9 + 9},
		"one that never turns": {[]*ins{loop(), loop(call), loop(loop())}, 1 + 1 + 2 + 2},
	} {
		m := single([]byte{typeI32}, []byte{typeI32}, []byte{typeI32, typeI32, typeI32}, append(c.body, op(0x20, 0))...)
		m.types = append(m.types, signature{})
		m.functions = append(m.functions, &function{typ: 1})
		everywhere(t, name, m, c.want, 8)
	}
}
