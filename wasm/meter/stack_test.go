package meter

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// deep returns a function that calls itself between computing and using many values, so that
// the engine must keep them in its frame. It takes and returns its parameters, and executes
// inner in between.
func deep(params, locals int, inner ...*ins) *module {
	types := bytes.Repeat([]byte{typeI64}, params)
	m := single(types, types, bytes.Repeat([]byte{typeI64}, locals))
	for i := range locals {
		m.functions[0].body = append(m.functions[0].body, i32(int32(8*i)), op(0x29, 3, 0), op(0x21, uint64(params+i)))
	}
	body := append(m.functions[0].body, inner...)
	for i := range params {
		body = append(body, op(0x20, uint64(i)))
	}
	body = append(body, op(0x10, 0))
	for i := range locals {
		body = append(body, i32(int32(8*i)), op(0x20, uint64(params+i)), op(0x37, 3, 0))
	}
	m.functions[0].body = body
	return m
}

// meet returns n nested blocks. After each, every local may have one of two values.
func meet(n, params, locals int) []*ins {
	var body []*ins
	for i := range n {
		for l := range locals {
			body = append(body, op(0x20, uint64(params+l)), op(0x42, uint64(i+l)), op(0x7c), op(0x21, uint64(params+l)))
		}
		body = one(&ins{op: 0x02, body: append([]*ins{i32(0), op(0x28, 2, uint64(i)), op(0x0d, 0)}, body...)})
	}
	return body
}

// straight returns code with n values that all live across a call. It needs local 0.
func straight(n, params int) []*ins {
	var body []*ins
	for i := range n {
		body = append(body, i32(0), op(0x29, 3, uint64(8*i)))
	}
	for range params {
		body = append(body, op(0x42, 0))
	}
	body = append(body, op(0x10, 0))
	for range params {
		body = append(body, op(0x1a))
	}
	for range n - 1 {
		body = append(body, op(0x7c))
	}
	return append(body, op(0x21, 0), i32(0), op(0x20, 0), op(0x37, 3, 0))
}

// through makes the function call itself through a table.
func through(m *module) *module {
	m.table, m.tableMax = []int64{0}, 1
	body := m.functions[0].body
	for i, in := range body {
		if in.op == 0x10 {
			m.functions[0].body = append(append(append([]*ins{}, body[:i]...), i32(0), op(0x11, 0, 0)), body[i+1:]...)
		}
	}
	return m
}

// wide returns n blocks that end, by a branch or at their end, with many results that all live
// across a call.
func wide(n, results int) *module {
	m := single(nil, nil, []byte{typeI64})
	m.types = append(m.types, signature{nil, bytes.Repeat([]byte{typeI64}, results)})
	loads := func(at int) (list []*ins) {
		for i := range results {
			list = append(list, i32(0), op(0x29, 3, uint64(8*(at+i))))
		}
		return list
	}
	body := &m.functions[0].body
	for i := range n {
		inside := append(loads(i), i32(0), op(0x28, 2, uint64(4*i)), op(0x0d, 0))
		for range results {
			inside = append(inside, op(0x1a))
		}
		*body = append(*body, &ins{op: 0x02, result: 1, body: append(inside, loads(i+100)...)}) // a type index
	}
	*body = append(*body, op(0x10, 0))
	for range n*results - 1 {
		*body = append(*body, op(0x7c))
	}
	*body = append(*body, op(0x21, 0), i32(0), op(0x20, 0), op(0x37, 3, 0))
	return m
}

// hand returns n nested loops whose parameters and results all live across a call.
func hand(n, values int) *module {
	types := bytes.Repeat([]byte{typeI64}, values)
	m := single(nil, nil, []byte{typeI64})
	m.types = append(m.types, signature{types, types})
	var body []*ins
	for i := range n {
		body = append(body, op(0x42, 1), op(0x7c), i32(0), op(0x28, 2, uint64(4*i)), op(0x0d, 0))
		body = one(&ins{op: 0x03, result: 1, body: body}) // a type index
	}
	var all []*ins
	for i := range values {
		all = append(all, i32(0), op(0x29, 3, uint64(8*i)))
	}
	all = append(all, body...)
	all = append(all, op(0x10, 0))
	for range values - 1 {
		all = append(all, op(0x7c))
	}
	m.functions[0].body = append(all, op(0x21, 0), i32(0), op(0x20, 0), op(0x37, 3, 0))
	return m
}

// TestFramesAreBounded runs recursive functions with the largest possible frames, of several
// kinds. It checks that the engine's stack never exceeds the bound, and that the heap grows at
// most by a few times as much.
func TestFramesAreBounded(t *testing.T) {
	loops := func(n, locals int) []*ins {
		var body []*ins
		for l := range locals {
			body = append(body, op(0x20, uint64(l)), op(0x42, 1), op(0x7c), op(0x21, uint64(l)))
		}
		for i := range n {
			body = one(loop(append(body, i32(0), op(0x28, 2, uint64(i)), op(0x0d, 0))...))
		}
		return body
	}
	for _, c := range []struct {
		name string
		m    *module
	}{
		{"nothing", deep(0, 0)},
		{"few locals", deep(1, 10)},
		{"many locals", deep(0, 1000)},
		{"most locals", deep(0, 4000)},
		{"many parameters", deep(1000, 0)},
		{"many values", deep(0, 1, straight(2000, 0)...)},
		{"most values", deep(0, 1, straight(20_000, 0)...)},
		{"values and parameters", deep(100, 100, straight(1000, 100)...)},
		{"meets", deep(0, 100, meet(20, 0, 100)...)},
		{"many meets", deep(0, 1000, meet(10, 0, 1000)...)},
		{"indirect", through(deep(100, 10))},
		{"wide blocks", wide(10, 100)},
		{"loops", deep(0, 100, loops(30, 100)...)},
		{"loops that take values", hand(3, 500)},
		{"a loop that takes many values", hand(1, 3000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEngine(t)
			for _, stack := range []int64{64 << 10, DefaultStack} {
				if _, _, err := Instrument(c.m.encode(), Config{Stack: stack}); err != nil && strings.Contains(err.Error(), "bytes of stack for one function") {
					t.Logf("stack %d: %v", stack, err)
					continue
				}
				a := e.metered(t, c.m.encode(), Config{Stack: stack})
				a.give(MaxFuel)
				f := a.ExportedFunction("run")
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				words := make([]uint64, max(1, len(c.m.types[0].params)))
				err := f.CallWithStack(context.Background(), words)
				runtime.ReadMemStats(&after)
				if trapOf(err) != unreachable || int64(a.stack.Get()) >= 0 {
					t.Errorf("it ended with %v, %d bytes of stack left", err, int64(a.stack.Get()))
				}
				if got := stackBytes(t, f); got > mostStack(stack) {
					t.Errorf("the engine's stack has %d bytes, %d were allowed", got, stack)
				} else if grown := after.TotalAlloc - before.TotalAlloc; grown > 2*uint64(mostStack(stack))+1<<20 {
					t.Errorf("%d bytes were allocated", grown)
				} else {
					t.Logf("stack %d: the engine has %d, %d were allocated", stack, got, grown)
				}
			}
		})
	}
}

// TestLargeFramesAreExact compares the bound of a frame that is larger than the engine's first
// stack with the size that the engine allocates for it.
func TestLargeFramesAreExact(t *testing.T) {
	const first = 10_240
	for name, m := range map[string]*module{
		"locals": deep(0, 3000), "values": deep(0, 1, straight(5000, 0)...), "meets": deep(0, 500, meet(20, 0, 500)...), "parameters": deep(2000, 0),
		"indirect": through(deep(1000, 0)), "wide blocks": wide(20, 300),
	} {
		out, report, err := Instrument(m.encode(), Config{Stack: MaxFuel})
		testkit.NoError(t, err)
		mod, err := newEngine(t).instance(out)
		testkit.NoError(t, err)
		arm(t, mod, report.Slice).give(0) // the engine grows the stack before the call ends
		f := mod.ExportedFunction("run")
		words := make([]uint64, max(1, len(m.types[0].params)))
		if err := f.CallWithStack(context.Background(), words); trapOf(err) != unreachable {
			t.Fatal(err)
		}
		needs := stackBytes(t, f) - 2*first - 16
		t.Logf("%s: the frame needs %d bytes, the bound is %d", name, needs, report.Frame)
		if needs > int64(report.Frame) {
			t.Errorf("%s: the frame needs %d bytes, the bound says %d", name, needs, report.Frame)
		}
	}
}

// TestManyResultsLeave checks that all exits of a function with several results release the
// stack and return the values.
func TestManyResultsLeave(t *testing.T) {
	m := single([]byte{typeI32}, []byte{typeI32, typeI64, typeI32}, nil,
		op(0x20, 0), cond([]*ins{i32(1), op(0x42, 2), i32(3), op(0x0f)}, nil),
		&ins{op: 0x02, body: []*ins{op(0x20, 0), op(0x0d, 0)}},
		i32(4), op(0x42, 5), i32(6), op(0x20, 0), op(0x0d, 0))
	m.functions[0].body = append([]*ins{op(0x20, 0), i32(9), op(0x46), cond([]*ins{op(0x20, 0), op(0x10, 0), op(0x1a), op(0x1a), op(0x1a)}, nil)}, m.functions[0].body...)
	a := newEngine(t).metered(t, m.encode(), Config{})
	for arg, want := range []string{"[4 5 6]", "[1 2 3]"} {
		a.give(100)
		got, err := a.ExportedFunction("run").Call(context.Background(), uint64(arg))
		if err != nil || fmt.Sprint(got) != want || a.stack.Get() != DefaultStack {
			t.Errorf("%d: %v, %v, %d bytes of stack", arg, got, err, a.stack.Get())
		}
	}
}
