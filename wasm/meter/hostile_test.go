package meter

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// sec encodes a section; raw makes a module from bytes, valid or not.
func sec(id byte, content ...byte) []byte {
	return append(appendU32([]byte{id}, uint32(len(content))), content...)
}

func raw(sections ...[]byte) []byte {
	return append([]byte(preamble), bytes.Join(sections, nil)...)
}

// The sections of a small valid module: one type, one function, a table, a memory, a global, an
// export.
var (
	goodType     = sec(1, 1, 0x60, 0, 0)
	goodFunction = sec(3, 1, 0)
	goodTable    = sec(4, 1, 0x70, 0, 1)
	goodMemory   = sec(5, 1, 0, 1)
	goodGlobal   = sec(6, 1, 0x7e, 1, 0x42, 0, 0x0b)
	goodExport   = sec(7, 1, 1, 'f', 0, 0)
)

// with returns that module with these instructions in its function.
func with(code ...byte) []byte {
	body := append([]byte{0}, append(code, 0x0b)...)
	content := append(appendU32([]byte{1}, uint32(len(body))), body...)
	return raw(goodType, goodFunction, goodTable, goodMemory, goodGlobal, goodExport, sec(10, content...))
}

// hostile lists modules, each with the section that the error must name, and a part of its
// reason.
var hostile = []struct {
	name    string
	module  []byte
	section string
	reason  string
}{
	{"nothing", nil, "header", "not a WebAssembly"},
	{"text", []byte("(module)"), "header", "not a WebAssembly"},
	{"component", []byte("\x00asm\x0d\x00\x01\x00"), "header", "not a WebAssembly"},
	{"too large", make([]byte, DefaultSize+1), "header", "bytes, at most"},
	{"no memory", raw(goodType), "memory", "no memory"},

	// Sections.
	{"tags", raw(goodMemory, sec(13, 1, 0, 0)), "unknown", "0x0d"},
	{"unknown section", raw(sec(99)), "unknown", "0x63"},
	{"repeated section", raw(goodType, goodType), "type", "repeated or out of order"},
	{"section out of order", raw(goodMemory, goodType), "type", "repeated or out of order"},
	{"count after code", raw(goodMemory, sec(10, 0), sec(12, 0)), "data count", "out of order"},
	{"section longer than the module", raw([]byte{1, 100, 0}), "type", "unexpected end"},
	{"section size of six bytes", raw([]byte{1, 0x80, 0x80, 0x80, 0x80, 0x80, 0}), "type", "longer than 32 bits"},
	{"section size beyond 32 bits", raw([]byte{1, 0x80, 0x80, 0x80, 0x80, 0x10}), "type", "longer than 32 bits"},
	{"bytes after the last item", raw(sec(1, 1, 0x60, 0, 0, 0)), "type", "after the last item"},
	{"more items than bytes", raw(sec(1, 100, 0x60, 0, 0)), "type", "more types than bytes"},
	{"item missing", raw(sec(1, 2, 0x60, 0, 0)), "type", "unexpected end"},
	{"name not UTF-8", raw(goodMemory, sec(7, 1, 1, 0xff, 2, 0)), "export", "UTF-8"},
	{"custom section without name", raw(sec(0, 5)), "custom", "unexpected end"},

	// Features.
	{"structure type", raw(sec(1, 1, 0x5f, 0)), "type", "not a function type"},
	{"vector parameter", raw(sec(1, 1, 0x60, 1, 0x7b, 0)), "type", "SIMD"},
	{"typed reference", raw(sec(1, 1, 0x60, 1, 0x64, 0)), "type", "unknown value type"},
	{"shared memory", raw(sec(5, 1, 3, 1, 1)), "memory", "shared"},
	{"64-bit memory", raw(sec(5, 1, 4, 1)), "memory", "64-bit"},
	{"two memories", raw(sec(5, 2, 0, 1, 0, 1)), "memory", "2 memories, at most 1"},
	{"64-bit table", raw(sec(4, 1, 0x70, 4, 1)), "table", "64-bit"},
	{"atomics", with(0xfe, 0x03, 0), "code", "threads"},
	{"vectors", with(0xfd, 0x0c), "code", "SIMD"},
	{"try_table", with(0x1f, 0x40, 0), "code", "exceptions"},
	{"try", with(0x06, 0x40), "code", "exceptions"},
	{"throw", with(0x08, 0), "code", "exceptions"},
	{"tail call", with(0x12, 0), "code", "tail calls"},
	{"indirect tail call", with(0x13, 0, 0), "code", "tail calls"},
	{"structures", with(0xfb, 0, 0), "code", "garbage collection"},
	{"call_ref", with(0x14, 0), "code", "typed references"},
	{"other memory", with(0x41, 0, 0x28, 0x42, 1, 0), "code", "alignment"},
	{"memory.size of another", with(0x3f, 1, 0x1a), "code", "memory 1 does not exist"},
	{"opcode 0xff", with(0xff), "code", "unknown opcode 0xff"},
	{"opcode 0x27", with(0x27), "code", "unknown opcode 0x27"},
	{"opcode 0xfc 18", with(0xfc, 18), "code", "unknown opcode 0xfc 18"},
	{"opcode 0xfc, padded", with(0xfc, 0x8b, 0x00), "code", "unknown opcode 0xfc 139"},

	// Imports.
	{"import off the list", raw(goodType, sec(2, 1, 1, 'm', 1, 'f', 0, 0)), "import", "m.f is not on the list"},
	{"import of a memory", raw(goodType, sec(2, 1, 1, 'm', 1, 'f', 2, 0, 1)), "import", "no function"},
	{"import of a global", raw(goodType, sec(2, 1, 1, 'm', 1, 'f', 3, 0x7e, 1)), "import", "no function"},
	{"import of a table", raw(goodType, sec(2, 1, 1, 'm', 1, 'f', 1, 0x70, 0, 1)), "import", "no function"},
	{"import of a missing type", raw(goodType, sec(2, append(append([]byte{1, 10}, "cascade_v1"...), 3, 'l', 'o', 'g', 0, 1)...)), "import", "type 1 does not exist"},

	// Accesses to the meter, which will be globals 1 to 3, function 1 and type 1.
	{"read the fuel", with(0x23, 1, 0x1a), "code", "global 1 does not exist: the module has 1"},
	{"refill the fuel", with(0x42, 0, 0x24, 1), "code", "global 1 does not exist"},
	{"clear the kill flag", with(0x42, 0, 0x24, 3), "code", "global 3 does not exist"},
	{"refill by a padded index", with(0x42, 0, 0x24, 0x81, 0x80, 0x80, 0x80, 0), "code", "global 1 does not exist"},
	{"refill the stack", with(0x42, 0, 0x24, 4), "code", "global 4 does not exist"},
	{"call the checkpoint", with(0x10, 1), "code", "function 1 does not exist"},
	{"refer to the checkpoint", with(0xd2, 1, 0x1a), "code", "function 1 does not exist"},
	{"checkpoint in a table", raw(goodType, goodFunction, goodTable, goodMemory, sec(9, 1, 0, 0x41, 0, 0x0b, 1, 1)), "element", "function 1 does not exist"},
	{"checkpoint in a table, as expression", raw(goodType, goodFunction, goodTable, goodMemory, sec(9, 1, 4, 0x41, 0, 0x0b, 1, 0xd2, 1, 0x0b)), "element", "function 1 does not exist"},
	{"checkpoint in a global", raw(goodType, goodFunction, goodMemory, sec(6, 1, 0x70, 0, 0xd2, 1, 0x0b)), "global", "function 1 does not exist"},
	{"checkpoint exported", raw(goodType, goodFunction, goodMemory, sec(7, 1, 1, 'c', 0, 1)), "export", "function 1 does not exist"},
	{"checkpoint started", raw(goodType, goodFunction, goodMemory, sec(8, 1)), "start", "function 1 does not exist"},
	{"fuel exported again", raw(goodType, goodMemory, goodGlobal, sec(7, 1, 1, 'c', 3, 1)), "export", "global 1 does not exist"},
	{"fuel in a constant", raw(goodMemory, sec(6, 1, 0x7e, 0, 0x23, 0, 0x0b)), "global", "not allowed in a constant"},
	{"extended constant", raw(goodMemory, sec(6, 1, 0x7e, 0, 0x42, 0, 0x42, 0, 0x7c, 0x0b)), "global", "one constant"},
	{"the meter's name", raw(goodMemory, goodGlobal, sec(7, append(append([]byte{1, 7}, FuelExport...), 3, 0)...)), "export", "reserved"},
	{"the name of the stack", raw(goodMemory, goodGlobal, sec(7, append(append([]byte{1, 8}, StackExport...), 3, 0)...)), "export", "reserved"},
	{"name exported twice", raw(goodMemory, goodGlobal, sec(7, 2, 1, 'x', 3, 0, 1, 'x', 2, 0)), "export", "same name"},
	{"the meter's scratch local", with(0x20, 0, 0x41, 0, 0x41, 0, 0xfc, 11, 0), "code", "local 0 does not exist"},
	{"the meter's type, called", with(0x41, 0, 0x11, 1, 0), "code", "type 1 does not exist"},
	{"the meter's type, of a block", with(0x02, 1, 0x0b), "code", "type of the block"},
	{"the meter's type, of a function", raw(goodType, sec(3, 1, 1), goodMemory), "function", "type 1 does not exist"},
	{"another table", with(0x41, 0, 0x25, 1, 0x1a), "code", "table 1 does not exist"},
	{"another table, called through", with(0x41, 0, 0x11, 0, 1), "code", "table 1 does not exist"},
	{"a missing element segment", with(0xfc, 13, 0), "code", "element segment 0 does not exist"},
	{"no data count", with(0xfc, 9, 0), "code", "data count section is missing"},
	{"a missing data segment", raw(goodType, goodFunction, goodMemory, sec(12, 1), sec(10, 1, 5, 0, 0xfc, 9, 1, 0x0b), sec(11, 1, 1, 0)), "code", "data segment 1 does not exist"},
	{"fewer segments than counted", raw(goodMemory, sec(12, 2), sec(11, 1, 1, 0)), "data", "as many data segments"},
	{"no segments though counted", raw(goodMemory, sec(12, 2)), "data", "missing"},
	{"data outside the memory", raw(goodMemory, sec(11, 1, 0, 0x41, 0xff, 0xff, 3, 0x0b, 2, 1, 1)), "data", "outside the initial memory"},
	{"data at a negative offset", raw(goodMemory, sec(11, 1, 0, 0x41, 0x7f, 0x0b, 1, 1)), "data", "outside the initial memory"},
	{"data at no i32", raw(goodMemory, sec(11, 1, 0, 0x42, 0, 0x0b, 1, 1)), "data", "outside the initial memory"},
	{"data of a fourth form", raw(goodMemory, sec(11, 1, 3, 0)), "data", "unknown form"},
	{"elements of a ninth form", raw(goodMemory, sec(9, 1, 8, 0)), "element", "unknown form"},
	{"elements without a table", raw(goodType, goodFunction, goodMemory, sec(9, 1, 0, 0x41, 0, 0x0b, 1, 0)), "element", "table 0 does not exist"},

	// Structure of code.
	{"function without end", raw(goodType, goodFunction, goodMemory, sec(10, 1, 2, 0, 0x01)), "code", "unexpected end"},
	{"block without end", with(0x02, 0x40), "code", "unexpected end"},
	{"code after the end", with(0x0b, 0x01), "code", "after the end of the function"},
	{"else without if", with(0x05), "code", "else without if"},
	{"two elses", with(0x41, 0, 0x04, 0x40, 0x05, 0x05, 0x0b), "code", "else without if"},
	{"branch to nowhere", with(0x0c, 1), "code", "label 1 does not exist"},
	{"br_table to nowhere", with(0x41, 0, 0x0e, 1, 0, 7), "code", "label 7 does not exist"},
	{"br_table of 2^32 labels", with(0x41, 0, 0x0e, 0xff, 0xff, 0xff, 0xff, 0x0f), "code", "labels"},
	{"block of an unknown type", with(0x02, 0x41, 0x0b), "code", "unknown value type 0x41"},
	{"block of a negative type", with(0x02, 0xff, 0x7e, 0x0b), "code", "type of the block"},
	{"select of two types", with(0x1c, 2, 0x7f, 0x7f), "code", "one type"},
	{"constant of six bytes", with(0x41, 0x80, 0x80, 0x80, 0x80, 0x80, 0, 0x1a), "code", "too long"},
	{"constant with spare bits", with(0x41, 0xff, 0xff, 0xff, 0xff, 0x4f, 0x1a), "code", "too long"},
	{"long constant with spare bits", with(0x42, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 0x1a), "code", "too long"},
	{"alignment beyond the access", with(0x41, 0, 0x28, 3, 0, 0x1a), "code", "alignment"},
	{"function declared, not defined", raw(goodType, goodFunction, goodMemory), "code", "no code"},
	{"function defined, not declared", raw(goodType, goodMemory, sec(10, 1, 2, 0, 0x0b)), "code", "1 function bodies for 0"},
	{"function longer than its section", raw(goodType, goodFunction, goodMemory, sec(10, 1, 50, 0, 0x0b)), "code", "unexpected end"},

	// Size.
	{"huge memory", raw(sec(5, 1, 0, 0x81, 1)), "memory", "memory pages, at most 128"},
	{"maximum below minimum", raw(sec(5, 1, 1, 2, 1)), "memory", "below its minimum"},
	{"maximum beyond 4 GiB", raw(sec(5, 1, 1, 1, 0x81, 0x80, 4)), "memory", "65537 memory pages as maximum, at most 65536"},
	{"huge table", raw(sec(4, 1, 0x70, 0, 0xff, 0xff, 0xff, 0x7f)), "table", "table entries, at most 65536"},
	{"many tables", raw(sec(4, append([]byte{17}, bytes.Repeat([]byte{0x70, 0, 1}, 17)...)...)), "table", "17 tables, at most 16"},
	{"2^32 functions", raw(goodType, sec(3, 0xff, 0xff, 0xff, 0xff, 0x0f)), "function", "functions, at most 20000"},
	{"2^32 locals", raw(goodType, goodFunction, goodMemory, sec(10, 1, 8, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, 0x0b)), "code", "locals in one function, at most 4096"},
	{"many small groups of locals", with2(append(append([]byte{2}, 0x80, 0x20, 0x7f, 1, 0x7f), 0x0b)...), "code", "4097 parameters and locals"},
	{"deep nesting", with(append(bytes.Repeat([]byte{0x02, 0x40}, DefaultDepth+1), bytes.Repeat([]byte{0x0b}, DefaultDepth+1)...)...), "code", "2049 nested blocks, at most 2048"},
	{"compile bomb", bomb(500, 100), "code", "merges of locals, at most"},
	{"giant frame", deep(0, 4000, meet(4, 0, 4000)...).encode(), "code", "bytes of stack for one function, at most 1048576"},
	{"table of many branches", with(append(appendU32([]byte{0x02, 0x40, 0x41, 0, 0x0e}, 100_000), append(make([]byte, 100_001), 0x0b)...)...), "code", "merges of locals, at most"},
	{"many ifs", with(bytes.Repeat([]byte{0x41, 0, 0x04, 0x40, 0x0b}, 30_000)...), "code", "merges of locals, at most"},
	{"many branches", with(append([]byte{0x02, 0x40}, append(bytes.Repeat([]byte{0x41, 0, 0x0d, 0}, 30_000), 0x0b)...)...), "code", "merges of locals, at most"},
	{"many calls among many globals", callsAndGlobals(4096, 2000), "code", "merges of locals, at most"},
	{"20001 functions", functions(20_001), "function", "20001 functions, at most 20000"},
	{"4097 globals", callsAndGlobals(4097, 0), "global", "4097 globals, at most 4096"},
	{"4097 types", raw(sec(1, append(appendU32(nil, 4097), bytes.Repeat([]byte{0x60, 0, 0}, 4097)...)...)), "type", "types, at most 4096"},
	{"parameters without end", raw(sec(1, append([]byte{1, 0x60}, appendU32(nil, 1<<30)...)...)), "type", "parameters or results, at most 4096"},
	{"exports without end", raw(goodMemory, sec(7, appendU32(nil, 1<<30)...)), "export", "exports, at most 65536"},
	{"data without end", raw(goodMemory, sec(11, 1, 1, 0xff, 0xff, 0xff, 0xff, 7)), "data", "unexpected end"},
	{"elements without end", raw(goodType, goodFunction, goodTable, goodMemory, sec(9, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 7)), "element", "elements"},
	{"a name without end", raw(goodMemory, sec(7, 1, 0xff, 0xff, 0xff, 0xff, 7)), "export", "unexpected end"},
	{"wide branches", wideBranches(4000, 100_000), "code", "merges of locals, at most"},
	{"long function", with(bytes.Repeat([]byte{0x01}, DefaultFunctionBytes)...), "code", "bytes in one function"},
}

// with2 is like with, for a whole body including locals.
func with2(body ...byte) []byte {
	return raw(goodType, goodFunction, goodMemory, sec(10, append(appendU32([]byte{1}, uint32(len(body))), body...)...))
}

// bomb returns a module with nested loops that change many locals, which is quadratic work for a
// compiler.
func bomb(locals, depth int) []byte {
	var body []*ins
	for i := range depth {
		body = one(loop(append(body, i32(1), op(0x22, uint64(i%locals)), op(0x0d, 0))...))
	}
	return single(nil, nil, bytes.Repeat([]byte{typeI32}, locals), body...).encode()
}

// functions returns a module with n empty functions.
func functions(n int) []byte {
	code := append(appendU32(nil, uint32(n)), bytes.Repeat([]byte{2, 0, 0x0b}, n)...)
	return raw(goodType, sec(3, append(appendU32(nil, uint32(n)), make([]byte, n)...)...), goodMemory, sec(10, code...))
}

// callsAndGlobals returns a module with a function that calls itself, and with many globals, all
// of which a compiler reads again after each call.
func callsAndGlobals(globals, calls int) []byte {
	g := append(appendU32(nil, uint32(globals)), bytes.Repeat([]byte{0x7e, 1, 0x42, 0, 0x0b}, globals)...)
	body := append(append([]byte{0}, bytes.Repeat([]byte{0x10, 0}, calls)...), 0x0b)
	return raw(goodType, goodFunction, goodMemory, sec(6, g...), sec(10, append(appendU32([]byte{1}, uint32(len(body))), body...)...))
}

// wideBranches returns a module with a table of branches to a block with many results: a
// compiler that copies the results for each branch needs gigabytes.
func wideBranches(results, labels int) []byte {
	body := append(appendU32([]byte{0, 0x02, 1, 0x00, 0x0e}, uint32(labels)), make([]byte, labels+1)...)
	body = append(body, 0x0b)
	body = append(body, bytes.Repeat([]byte{0x1a}, results)...)
	body = append(body, 0x0b)
	types := append(append([]byte{2, 0x60, 0, 0, 0x60, 0}, appendU32(nil, uint32(results))...), bytes.Repeat([]byte{typeI64}, results)...)
	return raw(sec(1, types...), goodFunction, goodMemory, sec(10, append(appendU32([]byte{1}, uint32(len(body))), body...)...))
}

func TestHostileModulesAreRefused(t *testing.T) {
	if _, _, err := Instrument(with(0x01), Config{}); err != nil {
		t.Fatalf("the good module is refused: %v", err)
	}
	for _, c := range hostile {
		out, _, err := Instrument(c.module, Config{})
		var refused *Error
		if !errors.As(err, &refused) || out != nil {
			t.Errorf("%s: not refused: %v", c.name, err)
			continue
		}
		if refused.Section != c.section || !strings.Contains(refused.Reason, c.reason) {
			t.Errorf("%s: %v, want the %s section and %q", c.name, err, c.section, c.reason)
		}
		if refused.Offset < 0 || refused.Offset > len(c.module) {
			t.Errorf("%s: offset %d in %d bytes", c.name, refused.Offset, len(c.module))
		}
		if !strings.Contains(err.Error(), "offset 0x") || !strings.HasPrefix(err.Error(), c.section) {
			t.Errorf("%s: the message does not say where: %v", c.name, err)
		}
	}
}

func TestErrorOffset(t *testing.T) {
	_, _, err := Instrument(with(0x01, 0x01, 0xff), Config{})
	module := with(0x01, 0x01, 0xff)
	want := bytes.LastIndexByte(module, 0xff)
	var refused *Error
	if !errors.As(err, &refused) || refused.Offset != want {
		t.Errorf("%v, want offset %#x", err, want)
	}
}

// TestEveryTruncationIsRefused truncates a module that has every section.
func TestEveryTruncationIsRefused(t *testing.T) {
	for seed := range uint64(5) {
		m := generate(entropy(seed, 400))
		m.names, m.exports["other"] = false, m.exports["run"]
		code := m.encode()
		for n := range len(code) {
			if _, _, err := Instrument(code[:n], Config{}); err == nil {
				t.Fatalf("%d of %d bytes are accepted", n, len(code))
			}
		}
	}
}

// TestRefusalsAllocateLittle checks that reading a module takes memory in proportion to its own
// size, whatever sizes it declares.
func TestRefusalsAllocateLittle(t *testing.T) {
	modules := map[string][]byte{"20000 functions": functions(19_999), "2^27 names": append(with(), sec(0, append([]byte("\x04name\x01"), 5, 0xff, 0xff, 0xff, 0x3f, 0)...)...)}
	for _, c := range hostile {
		modules[c.name] = c.module
	}
	for name, module := range modules {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Instrument(module, Config{})
		runtime.ReadMemStats(&after)
		if most := uint64(64*len(module) + 64<<10); after.TotalAlloc-before.TotalAlloc > most {
			t.Errorf("%s: %d bytes were allocated for a module of %d", name, after.TotalAlloc-before.TotalAlloc, len(module))
		}
	}
}

// TestInvalidStaysInvalid checks that type errors, which only the engine detects, are still
// errors after the instrumentation.
func TestInvalidStaysInvalid(t *testing.T) {
	for name, code := range map[string][]byte{
		"value left":            with(0x41, 0),
		"value missing":         with(0x1a),
		"wrong type":            with(0x42, 0, 0x24, 0, 0x41, 0, 0x24, 0),
		"i64 as length":         with(0x41, 0, 0x41, 0, 0x42, 0, 0xfc, 11, 0),
		"no length":             with(0x41, 0, 0x41, 0, 0xfc, 11, 0),
		"value in a loop":       with(0x03, 0x40, 0x41, 0, 0x0b),
		"undeclared reference":  raw(goodType, sec(3, 2, 0, 0), goodMemory, sec(10, 2, 5, 0, 0xd2, 1, 0x1a, 0x0b, 2, 0, 0x0b)),
		"start with parameters": raw(sec(1, 1, 0x60, 1, 0x7f, 0), goodFunction, goodMemory, sec(8, 0), sec(10, 1, 2, 0, 0x0b)),
		"immutable global":      raw(goodType, goodFunction, goodMemory, sec(6, 1, 0x7e, 0, 0x42, 0, 0x0b), sec(10, 1, 6, 0, 0x42, 0, 0x24, 0, 0x0b)),
	} {
		out, _, err := Instrument(code, Config{})
		if err != nil {
			continue
		}
		if _, err := newEngine(t).r.CompileModule(context.Background(), out); err == nil {
			t.Errorf("%s: an invalid module became valid", name)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []Config{{Size: -1}, {Depth: 1 << 28}, {Pages: 65_537}, {Table: 1 << 28}, {Slice: -1}, {StartFuel: MaxFuel + 1}} {
		_, _, err := Instrument(with(0x01), c)
		var refused *Error
		if err == nil || errors.As(err, &refused) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestBadNamesAreDropped checks that invalid name sections are dropped: engines allocate what
// they declare.
func TestBadNamesAreDropped(t *testing.T) {
	good := with(0x01)
	for name, section := range map[string][]byte{
		"2^32 names":       {1, 5, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"name not there":   {1, 4, 1, 9, 1, 'x'},
		"not UTF-8":        {1, 4, 1, 0, 1, 0xff},
		"longer than file": {1, 100, 1},
		"locals only":      {2, 1, 0},
	} {
		out, _, err := Instrument(append(good[:len(good):len(good)], sec(0, append([]byte("\x04name"), section...)...)...), Config{})
		plain, _, _ := Instrument(good, Config{})
		if err != nil || !bytes.Equal(out, plain) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzBytes instruments arbitrary bytes. The instrumentation must not make an invalid module
// valid, must be deterministic, and must refuse its own output.
func FuzzBytes(f *testing.F) {
	for _, c := range hostile {
		if len(c.module) < 10_000 {
			f.Add(c.module)
		}
	}
	for seed := range uint64(10) {
		f.Add(generate(entropy(seed, 300)).encode())
	}
	f.Add(with(0x01))
	f.Fuzz(func(t *testing.T, code []byte) {
		before := bytes.Clone(code)
		out, _, err := Instrument(code, Config{})
		if !bytes.Equal(before, code) {
			t.Fatal("the input was changed")
		}
		var refused *Error
		if err != nil {
			if !errors.As(err, &refused) || refused.Offset < 0 || refused.Offset > len(code) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		again, _, _ := Instrument(code, Config{})
		if !bytes.Equal(out, again) {
			t.Fatal("the second result differs")
		}
		if _, _, err := Instrument(out, Config{}); err == nil {
			t.Fatal("a rewritten module is accepted again")
		}
		ctx := context.Background()
		r := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter().WithCoreFeatures(api.CoreFeaturesV2))
		defer r.Close(ctx)
		_, after := r.CompileModule(ctx, out)
		// Without the name section, which is dropped when it is invalid.
		_, was := r.CompileModule(ctx, withoutCustom(code))
		if after == nil && was != nil {
			t.Fatalf("an invalid module became valid; it was: %v\n%s", was, dump(code))
		}
		if after != nil && was == nil {
			t.Fatalf("a valid module became invalid: %v\n%s", after, dump(code))
		}
	})
}

// withoutCustom drops custom sections from a module that Instrument accepted.
func withoutCustom(code []byte) []byte {
	out := append([]byte(nil), code[:8]...)
	r := reader{b: code, at: 8, end: len(code)}
	for r.left() > 0 {
		start := r.at
		id := r.byte()
		r.bytes(r.u32())
		if id != secCustom {
			out = append(out, code[start:r.at]...)
		}
	}
	return out
}
