package opa

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/internal/regodocument"
)

const (
	// leastMinor is the version of OPA's interface, 1.leastMinor, that has
	// opa_eval.
	leastMinor = 2
	// mostAnswer bounds what rules answer to an entry point, in bytes.
	mostAnswer = 64 << 10
	// hostTicks and hostBytes price the host's work as package host prices imports:
	// a call, and as many bytes for one tick more.
	hostTicks = 16
	hostBytes = 64
)

// exports are the functions of OPA's that a Guest calls, with how many parameters
// of type i32 they take, and results they give.
var exports = map[string][2]int{
	"opa_malloc": {1, 1}, "opa_json_parse": {2, 1}, "opa_json_dump": {1, 1}, "opa_heap_ptr_get": {0, 1}, "opa_heap_ptr_set": {1, 0},
	"opa_heap_blocks_stash": {0, 0}, "builtins": {0, 1}, "entrypoints": {0, 1}, "opa_eval": {7, 1},
}

// Missing is why rules are refused that need built-in functions which OPA leaves
// to its host.
type Missing struct{ Functions []string }

// Error names the functions.
func (m *Missing) Error() string {
	return "opa: the rules need " + strings.Join(m.Functions, ", ") +
		": OPA leaves that to the host, and this one has none of it; a fixed detail does without sprintf, startswith and contains without patterns"
}

// Check holds that a compiled module has OPA's functions, with their types.
func Check(m wazero.CompiledModule) error {
	functions := m.ExportedFunctions()
	for _, name := range slices.Sorted(maps.Keys(exports)) {
		f, ok := functions[name]
		if !ok {
			return fmt.Errorf("opa: the module does not export %s: its interface is older than 1.%d, or it is not OPA's", name, leastMinor)
		}
		want := exports[name]
		if !are(f.ParamTypes(), want[0]) || !are(f.ResultTypes(), want[1]) {
			return fmt.Errorf("opa: the module's %s must take %d and return %d numbers of type i32", name, want[0], want[1])
		}
	}
	return nil
}

func are(types []api.ValueType, n int) bool {
	return len(types) == n && !slices.ContainsFunc(types, func(t api.ValueType) bool { return t != i32 })
}

// Guest gives an instance of OPA's module the functions of cascade-policy/1. Like
// them it is for one call at a time.
type Guest struct {
	host   Host
	mod    api.Module
	memory api.Memory

	malloc, eval, heapSet, heapGet api.Function
	stack                          [8]uint64

	started    bool
	deny, warn uint32 // entry points
	warns      bool
	data, base uint32 // the rules' data; where the heap of an evaluation begins
	arena      region
	input      region // room for the document
	writer     regodocument.Writer
	room       abi.GuardBuffer
}

// region is a piece of the module's heap that stays.
type region struct{ at, size uint32 }

// NewGuest returns the guest of an instance of a module that keeps Check. It runs
// nothing of it.
func NewGuest(mod api.Module, host Host) *Guest {
	return &Guest{host: host, mod: mod, memory: mod.Memory(), malloc: mod.ExportedFunction("opa_malloc"), eval: mod.ExportedFunction("opa_eval"),
		heapSet: mod.ExportedFunction("opa_heap_ptr_set"), heapGet: mod.ExportedFunction("opa_heap_ptr_get")}
}

// function is one that the module does not have. All but CallWithStack belong to
// another.
type function struct {
	api.Function
	do func(ctx context.Context, arg uint64) (uint64, error)
}

func (f *function) CallWithStack(ctx context.Context, stack []uint64) (err error) {
	stack[0], err = f.do(ctx, stack[0])
	return err
}

// Arena is cs_arena_v1. Its first call reads what the module is and needs.
func (g *Guest) Arena() api.Function { return &function{g.eval, g.allot} }

// Configure is cs_configure_v1.
func (g *Guest) Configure() api.Function { return &function{g.eval, g.configure} }

// Guard is cs_guard_v1.
func (g *Guest) Guard() api.Function { return &function{g.eval, g.judge} }

// call calls one of OPA's functions.
func (g *Guest) call(ctx context.Context, f api.Function, args ...uint32) (uint32, error) {
	for i, a := range args {
		g.stack[i] = uint64(a)
	}
	err := f.CallWithStack(ctx, g.stack[:])
	return uint32(g.stack[0]), err
}

func (g *Guest) named(ctx context.Context, name string, args ...uint32) (uint32, error) {
	return g.call(ctx, g.mod.ExportedFunction(name), args...)
}

func (g *Guest) charge(n int) { g.host.Charge(hostTicks + int64(n)/hostBytes) }

// allot makes room for frames of n bytes.
func (g *Guest) allot(ctx context.Context, arg uint64) (uint64, error) {
	if !g.started {
		if err := g.start(ctx); err != nil {
			return 0, err
		}
		g.started = true
	}
	// Twice the last one: what is given up stays in the heap.
	n := max(uint32(arg), g.arena.size+min(g.arena.size, uint32(arg)))
	var err error
	if g.arena, err = g.reserve(ctx, n); err != nil {
		return 0, err
	}
	return abi.Region(g.arena.at, g.arena.size), nil
}

// start reads the module's version, what it needs, and what it can be asked.
func (g *Guest) start(ctx context.Context) error {
	version, lesser := g.global(marker), g.global(minor)
	if version != 1 || lesser < leastMinor {
		return fmt.Errorf("opa: the module has version %d.%d of OPA's interface, the host knows 1.%d and what follows it", version, lesser, leastMinor)
	}
	needs, err := g.table(ctx, "builtins")
	if err != nil {
		return err
	}
	if len(needs) > 0 {
		return &Missing{slices.Sorted(maps.Keys(needs))}
	}
	entries, err := g.table(ctx, "entrypoints")
	if err != nil {
		return err
	}
	var there bool
	if g.deny, there = entries[regodocument.Deny]; !there {
		return fmt.Errorf("opa: the module has no entry point %s: opa build -t wasm -e %[1]s", regodocument.Deny)
	}
	g.warn, g.warns = entries[regodocument.Warn]
	if g.base, err = g.call(ctx, g.heapGet); err != nil {
		return err
	}
	return g.learn(ctx, []byte("{}"))
}

// global reads a number, 0 where there is none.
func (g *Guest) global(name string) uint32 {
	v := g.mod.ExportedGlobal(name)
	if v == nil || v.Type() != i32 {
		return 0
	}
	return uint32(v.Get())
}

// table reads what a function returns: an object of numbers.
func (g *Guest) table(ctx context.Context, name string) (map[string]uint32, error) {
	at, err := g.named(ctx, name)
	if err != nil {
		return nil, err
	}
	if at, err = g.named(ctx, "opa_json_dump", at); err != nil {
		return nil, err
	}
	b, err := g.terminated(at)
	if err != nil {
		return nil, err
	}
	g.charge(len(b))
	var table map[string]uint32
	if err := json.Unmarshal(b, &table); err != nil {
		return nil, fmt.Errorf("opa: the module's %s: %w", name, err)
	}
	return table, nil
}

// terminated returns a text that ends with a 0. It shares the module's memory.
func (g *Guest) terminated(at uint32) ([]byte, error) {
	size := g.memory.Size()
	b, ok := g.memory.Read(at, min(mostAnswer, size-min(at, size)))
	n := bytes.IndexByte(b, 0)
	if !ok || n < 0 {
		return nil, fmt.Errorf("opa: a text of the module lies outside its memory, or has more than %d bytes", mostAnswer)
	}
	return b[:n], nil
}

// reserve takes n bytes of the heap for good, aligned to 8.
func (g *Guest) reserve(ctx context.Context, n uint32) (region, error) {
	if _, err := g.call(ctx, g.heapSet, g.base); err != nil {
		return region{}, err
	}
	n = (n + 7) &^ 7
	at, err := g.call(ctx, g.malloc, n+8)
	if err != nil {
		return region{}, err
	}
	at = (at + 7) &^ 7
	if _, ok := g.memory.Read(at, n); !ok {
		return region{}, errors.New("opa: opa_malloc returned what lies outside the memory")
	}
	base, err := g.call(ctx, g.heapGet)
	g.base = (base + 7) &^ 7
	return region{at, n}, err
}

// learn parses the rules' data, for good.
func (g *Guest) learn(ctx context.Context, text []byte) error {
	r, err := g.reserve(ctx, uint32(len(text)))
	if err != nil {
		return err
	}
	g.memory.Write(r.at, text) // reserve has looked
	g.charge(len(text))
	if _, err = g.call(ctx, g.heapSet, g.base); err != nil {
		return err
	}
	data, err := g.named(ctx, "opa_json_parse", r.at, uint32(len(text)))
	if err != nil {
		return err
	}
	if data == 0 {
		return errors.New("opa: the data is not JSON")
	}
	// What parsing has freed must not be given out again.
	if _, err := g.named(ctx, "opa_heap_blocks_stash"); err != nil {
		return err
	}
	base, err := g.call(ctx, g.heapGet)
	g.data, g.base = data, (base+7)&^7
	return err
}

// failed is the result for what the guest cannot decide, with the reason.
func (g *Guest) failed(err error) uint64 {
	g.host.Fail(err.Error()[:min(len(err.Error()), mostText)])
	return abi.Result(abi.Failed, 0)
}

// frame returns a frame of n bytes in the arena.
func (g *Guest) frame(n uint64) []byte {
	b, ok := g.memory.Read(g.arena.at, uint32(n))
	if !ok || uint32(n) > g.arena.size {
		return nil
	}
	return b
}

// configure takes the rules' data.
func (g *Guest) configure(ctx context.Context, n uint64) (uint64, error) {
	config, s := abi.DecodeConfigureCall(g.frame(n))
	if s != abi.OK {
		return abi.Result(s, 0), nil
	}
	if len(config) == 0 {
		return abi.Result(abi.OK, 0), nil
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(config, &object); err != nil || object == nil {
		return g.failed(errors.New("the configuration of rules in Rego must be a JSON object, which they find under data")), nil
	}
	return abi.Result(abi.OK, 0), g.learn(ctx, bytes.Clone(config))
}

// judge answers a guard's frame.
func (g *Guest) judge(ctx context.Context, n uint64) (uint64, error) {
	frame := g.frame(n)
	change, s := g.room.Decode(frame)
	if s != abi.OK {
		return abi.Result(s, 0), nil
	}
	// Frames of a host name each replica once. One that repeats a name without end
	// would have the host write more than it was given to read.
	names := len(change.Next.Model)
	for _, stages := range [...][]policies.Stage{change.Now.Stages, change.Next.Stages} {
		for i := range stages {
			for _, id := range stages[i].Replicas {
				names += 8 + len(id)
			}
		}
	}
	if names > len(frame) {
		return abi.Result(abi.BadFrame, 0), nil
	}
	call, s := abi.DecodeContext(frame)
	if s != abi.OK {
		return abi.Result(s, 0), nil
	}
	text := g.writer.Input(change, int64(call.Now/policies.Second))
	g.charge(len(text))
	stages := len(change.Next.Stages)
	if uint32(len(text)) > g.input.size {
		r, err := g.reserve(ctx, uint32(2*len(text)))
		if err != nil {
			return 0, err
		}
		g.input = r
	}
	if !g.memory.Write(g.input.at, text) {
		return 0, errors.New("opa: the room for the input is gone") // memories do not shrink
	}
	denials, failure, err := g.ask(ctx, g.deny, len(text))
	if err == nil && failure == nil && len(denials) == 0 && g.warns {
		var warnings []abi.Denial
		warnings, failure, err = g.ask(ctx, g.warn, len(text))
		for _, w := range warnings {
			g.host.Log(fmt.Sprintf("warning %d, stage %d: %s", w.Code, w.Stage, w.Detail))
		}
	}
	switch {
	case err != nil:
		return 0, err
	case failure != nil:
		return g.failed(failure), nil
	}
	var d abi.Denial
	if len(denials) > 0 {
		if d = denials[0]; d.Stage >= stages {
			d.Stage = -1
		}
	}
	// The memory may have moved.
	return abi.EncodeGuardResult(g.frame(n), d, len(denials) > 0), nil
}

// ask evaluates an entry point on the n bytes of input. The failure says what is
// wrong with the answer, the error that there is none.
func (g *Guest) ask(ctx context.Context, entry uint32, n int) (findings []abi.Denial, failure, err error) {
	at, err := g.call(ctx, g.eval, 0, entry, g.data, g.input.at, uint32(n), g.base, 0)
	if err != nil {
		return nil, nil, err
	}
	text, err := g.terminated(at)
	if err != nil {
		return nil, nil, err
	}
	g.charge(len(text))
	findings, failure = regodocument.Results(text)
	return findings, failure, nil
}
