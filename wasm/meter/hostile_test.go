package meter

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/internal/testkit"
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

// large lists modules that are too long for testdata/hostile.txt, and some bytes that are no
// module, each with the section that
// the error must name, and a part of its reason.
var large = []struct {
	name    string
	module  []byte
	section string
	reason  string
}{
	{"nothing", nil, "header", "not a WebAssembly"},
	{"text", []byte("(module)"), "header", "not a WebAssembly"},
	{"component", []byte("\x00asm\x0d\x00\x01\x00"), "header", "not a WebAssembly"},
	{"too large", make([]byte, MaxSize+1), "header", "bytes, at most"},
	{"deep nesting", with(append(bytes.Repeat([]byte{0x02, 0x40}, maxDepth+1), bytes.Repeat([]byte{0x0b}, maxDepth+1)...)...), "code", "2049 nested blocks, at most 2048"},
	{"compile bomb", bomb(500, 100), "code", "merges of locals, at most"},
	{"giant frame", deep(0, 4000, meet(4, 0, 4000)...).encode(), "code", "bytes of stack for one function, at most 1048576"},
	{"table of many branches", with(append(appendU32([]byte{0x02, 0x40, 0x41, 0, 0x0e}, 100_000), append(make([]byte, 100_001), 0x0b)...)...), "code", "merges of locals, at most"},
	{"many ifs", with(bytes.Repeat([]byte{0x41, 0, 0x04, 0x40, 0x0b}, 30_000)...), "code", "merges of locals, at most"},
	{"many branches", with(append([]byte{0x02, 0x40}, append(bytes.Repeat([]byte{0x41, 0, 0x0d, 0}, 30_000), 0x0b)...)...), "code", "merges of locals, at most"},
	{"many calls among many globals", callsAndGlobals(4096, 2000), "code", "merges of locals, at most"},
	{"20001 functions", functions(20_001), "function", "20001 functions, at most 20000"},
	{"4097 globals", callsAndGlobals(4097, 0), "global", "4097 globals, at most 4096"},
	{"4097 types", raw(sec(1, append(appendU32(nil, 4097), bytes.Repeat([]byte{0x60, 0, 0}, 4097)...)...)), "type", "types, at most 4096"},
	{"wide branches", wideBranches(4000, 100_000), "code", "merges of locals, at most"},
	{"long function", with(bytes.Repeat([]byte{0x01}, maxFunctionBytes)...), "code", "bytes in one function"},
}

// parseModule returns the module of a line of testdata/hostile.txt.
func parseModule(words []string) []byte {
	good := map[string][]byte{"type": goodType, "function": goodFunction, "table": goodTable, "memory": goodMemory, "global": goodGlobal, "export": goodExport}
	var sections [][]byte
	for _, word := range words {
		name, digits, _ := strings.Cut(word, "=")
		content := testkit.Must(hex.DecodeString(digits))
		switch {
		case good[word] != nil:
			content = good[word]
		case name == "code":
			return with(content...)
		case name != "raw":
			content = sec(byte(testkit.Must(strconv.Atoi(name))), content...)
		}
		sections = append(sections, content)
	}
	return raw(sections...)
}

// hostile returns the modules of testdata/hostile.txt and the large ones by their names.
func hostile(t testing.TB) map[string][]byte {
	all := map[string][]byte{}
	for _, c := range large {
		all[c.name] = c.module
	}
	for line := range strings.Lines(string(testkit.Must(os.ReadFile("testdata/hostile.txt")))) {
		if name, text, ok := strings.Cut(line, " = "); ok {
			all[name] = parseModule(strings.Fields(text))
		}
	}
	return all
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

// refusal checks that a module is refused, and returns the error.
func refusal(t *testing.T, name string, module []byte) *Error {
	t.Helper()
	out, _, err := Instrument(module, Config{})
	var refused *Error
	if !errors.As(err, &refused) || out != nil {
		t.Fatalf("%s: not refused: %v", name, err)
	}
	if refused.Offset < 0 || refused.Offset > len(module) {
		t.Errorf("%s: offset %d in %d bytes", name, refused.Offset, len(module))
	}
	if !strings.Contains(err.Error(), "offset 0x") || !strings.HasPrefix(err.Error(), refused.Section) {
		t.Errorf("%s: the message does not say where: %v", name, err)
	}
	return refused
}

// TestHostileModulesAreRefused runs testdata/hostile.txt, which has the errors (-rewrite
// rewrites them), and the large modules.
func TestHostileModulesAreRefused(t *testing.T) {
	if _, _, err := Instrument(with(0x01), Config{}); err != nil {
		t.Fatalf("the good module is refused: %v", err)
	}
	datadriven.RunTest(t, "testdata/hostile.txt", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		for line := range strings.Lines(d.Input) {
			name, text, _ := strings.Cut(line, " = ")
			fmt.Fprintf(&out, "%s: %v\n", name, refusal(t, name, parseModule(strings.Fields(text))))
		}
		return out.String()
	})
	for _, c := range large {
		if refused := refusal(t, c.name, c.module); refused.Section != c.section || !strings.Contains(refused.Reason, c.reason) {
			t.Errorf("%s: %v, want the %s section and %q", c.name, refused, c.section, c.reason)
		}
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
	maps.Copy(modules, hostile(t))
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
	for _, c := range []Config{{Pages: 65_537}, {Slice: -1}, {Slice: MaxFuel + 1}, {StartFuel: -1}, {StartFuel: MaxFuel + 1}, {Stack: -1}, {Stack: MaxFuel + 1}} {
		_, _, err := Instrument(with(0x01), c)
		var refused *Error
		if err == nil || errors.As(err, &refused) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// FuzzBytes instruments arbitrary bytes. The instrumentation must not make an invalid module
// valid, must be deterministic, and must refuse its own output.
func FuzzBytes(f *testing.F) {
	for _, module := range hostile(f) {
		if len(module) < 10_000 {
			f.Add(module)
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
