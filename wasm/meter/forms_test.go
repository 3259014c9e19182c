package meter

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// The sections of a module that has every form of tables, globals, elements and data. Its
// function 1, exported as f, returns an i32; function 0 returns 9.
var (
	formTypes   = sec(1, 2, 0x60, 0, 1, 0x7f, 0x60, 2, 0x7f, 0x7e, 2, 0x7f, 0x7f)
	formFuncs   = sec(3, 2, 0, 0)
	formTables  = sec(4, 2, 0x70, 1, 4, 8, 0x6f, 0, 3)
	formGlobals = sec(6, 7,
		0x7f, 0, 0x41, 41, 0x0b, 0x7f, 1, 0x41, 0x7f, 0x0b, 0x7e, 1, 0x42, 0xaa, 0x7f, 0x0b,
		0x7d, 0, 0x43, 0, 0, 0xc0, 0x3f, 0x0b, 0x7c, 1, 0x44, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x0b,
		0x70, 0, 0xd2, 0, 0x0b, 0x6f, 1, 0xd0, 0x6f, 0x0b)
	formExports  = sec(7, 4, 1, 'f', 0, 1, 1, 't', 1, 1, 1, 'm', 2, 0, 1, 'g', 3, 2)
	formElements = sec(9, 8,
		0, 0x41, 0, 0x0b, 1, 0, // active
		1, 0, 1, 0, // passive
		2, 0, 0x41, 1, 0x0b, 0, 1, 0, // active, with its table
		3, 0, 1, 0, // declared
		4, 0x41, 2, 0x0b, 1, 0xd2, 0, 0x0b, // the same with expressions
		5, 0x70, 1, 0xd2, 0, 0x0b,
		6, 1, 0x41, 0, 0x0b, 0x6f, 1, 0xd0, 0x6f, 0x0b,
		7, 0x70, 2, 0xd0, 0x70, 0x0b, 0xd2, 0, 0x0b)
	formMemory    = sec(5, 1, 1, 1, 2)
	formDataCount = sec(12, 4)
	formData      = sec(11, 4,
		0, 0x41, 0, 0x0b, 2, 'h', 'i', // active
		1, 1, 'p', // passive
		2, 0, 0x41, 5, 0x0b, 1, 'x', // active, with its memory
		0, 0x41, 0xfe, 0xff, 3, 0x0b, 2, 'e', 'n') // up to the last byte
)

// formed returns the module with the instructions in f.
func formed(code ...byte) []byte {
	body := append([]byte{2, 1, 0x7f, 1, 0x7e}, append(code, 0x0b)...)
	content := append([]byte{2, 4, 0, 0x41, 9, 0x0b}, append(appendU32(nil, uint32(len(body))), body...)...)
	return raw(formTypes, formFuncs, formTables, formMemory, formGlobals, formExports, formElements, formDataCount, sec(10, content...), formData)
}

// load appends the instructions that load a byte.
func load(at byte, code ...byte) []byte { return append(code, 0x41, at, 0x2d, 0, 0) }

// isNull appends the instructions that compare an entry of a table with null.
func isNull(table, at byte, code ...byte) []byte { return append(code, 0x41, at, 0x25, table, 0xd1) }

// TestEveryFormIsKept runs modules with every form of instruction and section that is
// accepted, as they are and instrumented: both return the same.
func TestEveryFormIsKept(t *testing.T) {
	e := newEngine(t)
	for name, c := range map[string]struct {
		code []byte
		want uint64
	}{
		"typed select":           {[]byte{0x41, 5, 0x41, 6, 0x41, 1, 0x1c, 1, 0x7f}, 5},
		"select and drop":        {[]byte{0x41, 5, 0x41, 6, 0x41, 0, 0x1b, 0x41, 1, 0x1a, 1}, 6},
		"memory.size":            {[]byte{0x3f, 0}, 1},
		"memory.grow":            {[]byte{0x41, 1, 0x40, 0, 0x1a, 0x3f, 0}, 2},
		"memory.grow too far":    {[]byte{0x41, 2, 0x40, 0}, 1<<32 - 1},
		"memory.init":            {load(8, 0x41, 8, 0x41, 0, 0x41, 1, 0xfc, 8, 1, 0), 'p'},
		"data.drop":              {[]byte{0xfc, 9, 1, 0x41, 7}, 7},
		"memory.copy":            {load(10, 0x41, 10, 0x41, 0, 0x41, 2, 0xfc, 10, 0, 0), 'h'},
		"memory.fill":            {load(10, 0x41, 10, 0x41, 42, 0x41, 1, 0xfc, 11, 0), 42},
		"data in a named memory": {load(5), 'x'},
		"the last byte":          {[]byte{0x41, 0xff, 0xff, 3, 0x2d, 0, 0}, 'n'},
		"table.init":             {isNull(0, 3, 0x41, 3, 0x41, 0, 0x41, 1, 0xfc, 12, 1, 0), 0},
		"table.init of null":     {isNull(0, 0, 0x41, 0, 0x41, 0, 0x41, 0, 0xfc, 12, 5, 0), 0},
		"elem.drop":              {[]byte{0xfc, 13, 5, 0x41, 7}, 7},
		"table.copy":             {isNull(0, 3, 0x41, 3, 0x41, 0, 0x41, 1, 0xfc, 14, 0, 0), 0},
		"table.grow":             {[]byte{0xd0, 0x70, 0x41, 1, 0xfc, 15, 0}, 4},
		"table.grow of another":  {[]byte{0xd0, 0x6f, 0x41, 1, 0xfc, 15, 1}, 3},
		"table.size":             {[]byte{0xfc, 16, 1}, 3},
		"table.fill":             {isNull(0, 0, 0x41, 0, 0xd0, 0x70, 0x41, 1, 0xfc, 17, 0), 1},
		"table.set":              {isNull(0, 3, 0x41, 3, 0xd2, 0, 0x26, 0), 0},
		"an entry that is null":  {isNull(0, 3), 1},
		"an external reference":  {isNull(1, 0), 1},
		"three active segments":  {append(isNull(0, 0), append(isNull(0, 1, isNull(0, 2)...), 0x6a, 0x6a)...), 0},
		"call":                   {[]byte{0x10, 0}, 9},
		"call_indirect":          {[]byte{0x41, 2, 0x11, 0, 0}, 9},
		"global.get":             {[]byte{0x23, 0, 0x23, 1, 0x6a}, 40},
		"global.set":             {[]byte{0x41, 3, 0x24, 1, 0x23, 1}, 3},
		"i64":                    {[]byte{0x23, 2, 0x42, 0x80, 0x7f, 0x7d, 0xa7}, 1<<32 - 86 + 128 - 1<<32},
		"f32":                    {[]byte{0x43, 0, 0, 0x20, 0x40, 0x23, 3, 0x92, 0xa8}, 4},
		"f64":                    {[]byte{0x44, 0, 0, 0, 0, 0, 0, 4, 0x40, 0x23, 4, 0xa0, 0xaa}, 4},
		"saturating truncation":  {[]byte{0x43, 0, 0, 0x80, 0x7f, 0xfc, 1}, 1<<32 - 1},
		"extension":              {[]byte{0x42, 0x80, 1, 0xc2, 0x42, 0xff, 0xff, 0xff, 0xff, 0x0f, 0xc4, 0x7c, 0xa7}, 1<<32 - 129},
		"aligned store":          {[]byte{0x41, 0, 0x42, 7, 0x3e, 2, 8, 0x41, 8, 0x28, 2, 0}, 7},
		"locals":                 {[]byte{0x41, 5, 0x22, 0, 0x21, 0, 0x42, 6, 0x21, 1, 0x20, 0, 0x20, 1, 0xa7, 0x6a}, 11},
		"block with a type":      {[]byte{0x41, 4, 0x42, 5, 0x02, 1, 0xa7, 0x0b, 0x6a}, 9},
		"if with a type":         {[]byte{0x41, 4, 0x42, 5, 0x41, 0, 0x04, 1, 0x1a, 0x41, 1, 0x05, 0xa7, 0x0b, 0x6c}, 20},
		"loop with a type":       {[]byte{0x41, 4, 0x42, 5, 0x03, 1, 0xa7, 0x0b, 0x6c}, 20},
		"br_table":               {[]byte{0x02, 0x40, 0x02, 0x40, 0x41, 1, 0x0e, 1, 0, 1, 0x0b, 0x41, 1, 0x0f, 0x0b, 0x41, 2}, 2},
	} {
		module := formed(c.code...)
		out, _, err := Instrument(module, Config{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for how, code := range map[string][]byte{"as it is": module, "instrumented": out} {
			mod, err := e.instance(code)
			if err != nil {
				t.Errorf("%s, %s: %v", name, how, err)
				continue
			}
			if got, err := mod.ExportedFunction("f").Call(context.Background()); err != nil || got[0] != c.want {
				t.Errorf("%s, %s: %d, %v, want %d", name, how, got, err, c.want)
			}
			testkit.NoError(t, mod.Close(context.Background()))
		}
	}
}

// TestReport checks the report on a module.
func TestReport(t *testing.T) {
	m := single([]byte{typeI32}, nil, []byte{typeI32, typeI64}, loop(loop()), i32(0), op(0x1a))
	m.imports = []Import{{"cascade_v1", "log"}, {"cascade_v1", "fail"}}
	m.functions = append(m.functions, &function{typ: m.functions[0].typ})
	m.exports = map[string]uint32{"run": 2, "other": 3}
	code := m.encode()
	_, got, err := Instrument(code, Config{Slice: 77})
	testkit.NoError(t, err)
	if !slices.Equal(got.Imports, m.imports) || !slices.Equal(got.Exports, []string{"run", "other"}) {
		t.Errorf("imports %v, exports %v", got.Imports, got.Exports)
	}
	if got.Functions != 2 || got.Locals != 3 || got.Loops != 2 || got.Depth != 2 || got.Slice != 77 || got.Start || got.Pages != m.pages || got.MaxPages != m.maxPages {
		t.Errorf("%+v", got)
	}
	if got.Largest < 10 || got.Largest > len(code) {
		t.Errorf("the largest function has %d bytes of %d", got.Largest, len(code))
	}
}

// TestNamesOfFunctions checks which names are kept: those of functions that exist, in
// ascending order, each once. Invalid name sections are dropped, because engines allocate what they declare, and so are
// other custom sections.
func TestNamesOfFunctions(t *testing.T) {
	good := functions(3)
	plain, _, _ := Instrument(good, Config{})
	names := func(pairs ...string) string { // "\x00aa" names function 0
		list := string(rune(len(pairs)))
		for _, p := range pairs {
			list += p[:1] + string(rune(len(p)-1)) + p[1:]
		}
		return "\x04name\x01" + string(rune(len(list))) + list
	}
	for what, c := range map[string]struct {
		custom string
		kept   bool
	}{
		"ascending":             {names("\x00aa", "\x02cc"), true},
		"descending":            {names("\x02aa", "\x00cc"), false},
		"one twice":             {names("\x01aa", "\x01cc"), false},
		"one that is not there": {names("\x00aa", "\x03cc"), false},
		"not UTF-8":             {names("\x00aa", "\x02c\xff"), false},
		"2^32 names":            {"\x04name\x01\x05\xff\xff\xff\xff\x0f", false},
		"longer than the file":  {"\x04name\x01\x64\x01", false},
		"locals only":           {"\x04name\x02\x01\x00", false},
		"another section":       {"\x04nope\x01\x05\x01\x00\x02aa", false},
	} {
		out, _, err := Instrument(append(good[:len(good):len(good)], sec(0, []byte(c.custom)...)...), Config{})
		testkit.NoError(t, err)
		text := string(out)
		if kept := strings.Contains(text, "aa") && strings.Contains(text, "cc") && strings.Contains(text, checkpointName); kept != c.kept || !kept && !bytes.Equal(out, plain) {
			t.Errorf("%s: kept %v, want %v", what, kept, c.kept)
		}
	}
}

// TestDefaultsSuffice checks that the start function of a module has fuel by default.
func TestDefaultsSuffice(t *testing.T) {
	m := single(nil, nil, nil, i32(1), op(0x1a))
	m.start = 0
	out, _, err := Instrument(m.encode(), Config{})
	testkit.NoError(t, err)
	mod, err := newEngine(t).instance(out)
	testkit.NoError(t, err)
	testkit.NoError(t, mod.Close(context.Background()))
}

// TestBoundsOfVersion checks the bounds of the compiler's work and of frames, which are part
// of Version: other numbers need another one.
func TestBoundsOfVersion(t *testing.T) {
	for _, c := range []struct {
		what   string
		code   []byte
		merges uint64
		frame  uint64
	}{
		{"a constant", []byte{0x41, 0}, 0, 448},
		{"a return", []byte{0x41, 0, 0x0f}, 1, 464},
		{"assignments", []byte{0x41, 0, 0x21, 0, 0x41, 0, 0x22, 0}, 0, 480},
		{"assignments in a block", []byte{0x02, 0x40, 0x41, 0, 0x21, 0, 0x42, 0, 0x21, 1, 0x42, 0, 0x21, 1, 0x0b, 0x41, 0}, 2, 560},
		{"assignments before and in a block", []byte{0x42, 0, 0x21, 1, 0x02, 0x40, 0x41, 0, 0x21, 0, 0x0b, 0x41, 0}, 2, 520},
		{"a loop", []byte{0x03, 0x40, 0x0b, 0x41, 0}, 40, 704},
		{"assignments in a loop", []byte{0x03, 0x40, 0x41, 0, 0x21, 0, 0x0b, 0x41, 0}, 40, 752},
		{"a loop in a loop", []byte{0x03, 0x40, 0x03, 0x40, 0x0b, 0x0b, 0x41, 0}, 94, 704},
		{"a loop in two", []byte{0x03, 0x40, 0x03, 0x40, 0x03, 0x40, 0x0b, 0x0b, 0x0b, 0x41, 0}, 194, 704},
		{"a block of values", []byte{0x41, 0, 0x42, 0, 0x02, 1, 0xa7, 0x0b, 0x6a}, 6, 608},
		{"a loop of values", []byte{0x41, 0, 0x42, 0, 0x03, 1, 0xa7, 0x0b, 0x6a}, 50, 960},
		{"a branch with a value", []byte{0x02, 0x7f, 0x41, 0, 0x41, 1, 0x0d, 0, 0x0b}, 6, 544},
		{"a table of branches", []byte{0x02, 0x40, 0x02, 0x40, 0x41, 1, 0x0e, 2, 0, 1, 0, 0x0b, 0x0b, 0x41, 2}, 8, 512},
		{"a call", []byte{0x10, 0}, 4, 488},
		{"a call through a table", []byte{0x41, 0, 0x11, 0, 0}, 4, 632},
		{"a call with values", []byte{0x41, 0, 0x42, 0, 0x41, 0, 0x11, 1, 0, 0x6a}, 4, 800},
		{"bulk work", []byte{0x41, 0, 0x41, 0, 0x41, 0, 0xfc, 11, 0, 0x41, 0}, 0, 1056},
	} {
		_, got, err := Instrument(formed(c.code...), Config{})
		if err != nil || got.Merges != c.merges || got.Frame != c.frame {
			t.Errorf("%s: merges %d, frame %d, %v; want %d, %d", c.what, got.Merges, got.Frame, err, c.merges, c.frame)
		}
	}
}

// TestShortestNumbers checks that numbers are written in their shortest form.
func TestShortestNumbers(t *testing.T) {
	for v, want := range map[int64]int{0: 1, 63: 1, 64: 2, -1: 1, -64: 1, -65: 2, 8191: 2, 8192: 3, -8192: 2, -8193: 3, 1<<63 - 1: 10, -1 << 63: 10} {
		b := appendSigned(nil, v)
		r := reader{b: b, end: len(b)}
		if got := r.signed(64); len(b) != want || got != v || r.err != nil {
			t.Errorf("%d: %d bytes, read as %d, %v, want %d bytes", v, len(b), got, r.err, want)
		}
	}
}
