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
)

const (
	// minMinor is the minor version of OPA's interface 1 that added opa_eval.
	minMinor = 2
	// maxAnswer bounds the answer of an entry point, in bytes.
	maxAnswer = 64 << 10
	// hostTicks and hostBytes are the prices of the host's work, as package host has
	// them for imports: ticks per call, and bytes per further tick.
	hostTicks = 16
	hostBytes = 64
)

// exports lists OPA's functions that a Guest calls, with the numbers of their parameters
// and results, all of type i32.
var exports = map[string][2]int{
	"opa_malloc": {1, 1}, "opa_json_parse": {2, 1}, "opa_json_dump": {1, 1}, "opa_heap_ptr_get": {0, 1}, "opa_heap_ptr_set": {1, 0},
	"opa_heap_blocks_stash": {0, 0}, "builtins": {0, 1}, "entrypoints": {0, 1}, "opa_eval": {7, 1},
}

// Missing is the error for rules that need built-in functions which OPA leaves to its
// host.
type Missing struct{ Functions []string }

// Error returns a message that names the functions.
func (m *Missing) Error() string {
	return "opa: the rules need " + strings.Join(m.Functions, ", ") +
		": OPA leaves that to the host, and this one has none of it; a fixed detail does without sprintf, startswith and contains without patterns"
}

// Check returns an error if a compiled module lacks one of OPA's functions, or has it
// with another type.
func Check(m wazero.CompiledModule) error {
	functions := m.ExportedFunctions()
	for _, name := range slices.Sorted(maps.Keys(exports)) {
		f, ok := functions[name]
		if !ok {
			return fmt.Errorf("opa: the module does not export %s: its interface is older than 1.%d, or it is not OPA's", name, minMinor)
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

// Guest implements the functions of cascade-policy/1 for an instance of OPA's module. It
// is not safe for concurrent use.
type Guest struct {
	host   Host
	mod    api.Module
	memory api.Memory

	malloc, eval, heapSet, heapGet api.Function
	stack                          [8]uint64

	started    bool
	entries    map[string]uint32 // entry points
	data, base uint32            // address of the rules' data; where an evaluation's heap begins
	arena      region
	input      region // for the document
	writer     Writer
	room       abi.GuardBuffer
}

// region is an allocated region of the module's heap.
type region struct{ at, size uint32 }

// NewGuest returns the guest of an instance, whose module must satisfy Check. It does not
// run the module.
func NewGuest(mod api.Module, host Host) *Guest {
	return &Guest{host: host, mod: mod, memory: mod.Memory(), malloc: mod.ExportedFunction("opa_malloc"), eval: mod.ExportedFunction("opa_eval"),
		heapSet: mod.ExportedFunction("opa_heap_ptr_set"), heapGet: mod.ExportedFunction("opa_heap_ptr_get")}
}

// function is an api.Function that the host implements. Its other methods are those of
// the embedded function.
type function struct {
	api.Function
	do func(ctx context.Context, arg uint64) (uint64, error)
}

func (f *function) CallWithStack(ctx context.Context, stack []uint64) (err error) {
	stack[0], err = f.do(ctx, stack[0])
	return err
}

// Arena returns cs_arena_v1. Its first call reads the module's version and requirements.
func (g *Guest) Arena() api.Function { return &function{g.eval, g.allocateArena} }

// Configure returns cs_configure_v1.
func (g *Guest) Configure() api.Function { return &function{g.eval, g.configure} }

// Guard returns cs_guard_v1.
func (g *Guest) Guard() api.Function { return &function{g.eval, g.decide} }

// call calls one of OPA's functions and returns its result.
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

// allocateArena allocates the arena for frames of n bytes.
func (g *Guest) allocateArena(ctx context.Context, arg uint64) (uint64, error) {
	if !g.started {
		if err := g.start(ctx); err != nil {
			return 0, err
		}
		g.started = true
	}
	// At least twice the last one: the heap does not get the old arena back.
	n := max(uint32(arg), g.arena.size+min(g.arena.size, uint32(arg)))
	var err error
	if g.arena, err = g.reserve(ctx, n); err != nil {
		return 0, err
	}
	return abi.Region(g.arena.at, g.arena.size), nil
}

// start reads the module's version, the functions that it needs, and its entry points.
func (g *Guest) start(ctx context.Context) error {
	version, lesser := g.global(marker), g.global(minor)
	if version != 1 || lesser < minMinor {
		return fmt.Errorf("opa: the module has version %d.%d of OPA's interface, the host knows 1.%d and what follows it", version, lesser, minMinor)
	}
	needs, err := g.table(ctx, "builtins")
	if err != nil {
		return err
	}
	if len(needs) > 0 {
		return &Missing{slices.Sorted(maps.Keys(needs))}
	}
	if g.entries, err = g.table(ctx, "entrypoints"); err != nil {
		return err
	}
	_, plans := g.entries[PlanDeny]
	if _, slots := g.entries[SlotDeny]; !plans && !slots {
		return fmt.Errorf("opa: the module has no entry point %s: opa build -t wasm -e %[1]s", PlanDeny)
	}
	if g.base, err = g.call(ctx, g.heapGet); err != nil {
		return err
	}
	return g.loadData(ctx, []byte("{}"))
}

// global returns the value of an exported global, 0 if there is none.
func (g *Guest) global(name string) uint32 {
	v := g.mod.ExportedGlobal(name)
	if v == nil || v.Type() != i32 {
		return 0
	}
	return uint32(v.Get())
}

// table calls a function and decodes its result, a JSON object of numbers.
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

// terminated returns a zero-terminated text, which shares the module's memory.
func (g *Guest) terminated(at uint32) ([]byte, error) {
	size := g.memory.Size()
	b, ok := g.memory.Read(at, min(maxAnswer, size-min(at, size)))
	n := bytes.IndexByte(b, 0)
	if !ok || n < 0 {
		return nil, fmt.Errorf("opa: a text of the module lies outside its memory, or has more than %d bytes", maxAnswer)
	}
	return b[:n], nil
}

// reserve allocates n bytes of the heap permanently, aligned to 8.
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

// loadData parses the rules' data and keeps it.
func (g *Guest) loadData(ctx context.Context, text []byte) error {
	r, err := g.reserve(ctx, uint32(len(text)))
	if err != nil {
		return err
	}
	g.memory.Write(r.at, text) // in bounds: reserve checked it
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
	// Memory that parsing freed must not be allocated again.
	if _, err := g.named(ctx, "opa_heap_blocks_stash"); err != nil {
		return err
	}
	base, err := g.call(ctx, g.heapGet)
	g.data, g.base = data, (base+7)&^7
	return err
}

// failed reports the reason to the host and returns the result Failed.
func (g *Guest) failed(err error) uint64 {
	g.host.Fail(err.Error()[:min(len(err.Error()), maxText)])
	return abi.Result(abi.Failed, 0)
}

// frame returns the frame of n bytes in the arena.
func (g *Guest) frame(n uint64) []byte {
	b, ok := g.memory.Read(g.arena.at, uint32(n))
	if !ok || uint32(n) > g.arena.size {
		return nil
	}
	return b
}

// configure implements cs_configure_v1: the configuration is the rules' data.
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
	return abi.Result(abi.OK, 0), g.loadData(ctx, bytes.Clone(config))
}

// decide implements cs_guard_v1.
func (g *Guest) decide(ctx context.Context, n uint64) (uint64, error) {
	frame := g.frame(n)
	change, s := g.room.Decode(frame)
	if s != abi.OK {
		return abi.Result(s, 0), nil
	}
	// A host's frame has each replica's name once. Without this check, a frame that
	// repeats a name would make the host write more than it read.
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
	denials, failure, err := g.evaluate(ctx, PlanDeny, text)
	if _, warns := g.entries[PlanWarn]; err == nil && failure == nil && len(denials) == 0 && warns {
		var warnings []abi.Denial
		warnings, failure, err = g.evaluate(ctx, PlanWarn, text)
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

// Evaluation returns a function that evaluates a set on an input document, and adds its
// findings to out.
func (g *Guest) Evaluation(set string, input []byte, out *[]abi.Denial) api.Function {
	return &function{g.eval, func(ctx context.Context, _ uint64) (uint64, error) {
		g.charge(len(input))
		findings, failure, err := g.evaluate(ctx, set, input)
		*out = append(*out, findings...)
		return 0, errors.Join(failure, err)
	}}
}

// evaluate evaluates a set on an input. failure is the reason why the answer is invalid, err
// the reason why there is none.
func (g *Guest) evaluate(ctx context.Context, set string, input []byte) (findings []abi.Denial, failure, err error) {
	entry, ok := g.entries[set]
	if !ok {
		return nil, fmt.Errorf("opa: the module has no entry point %s", set), nil
	}
	if uint32(len(input)) > g.input.size {
		if g.input, err = g.reserve(ctx, uint32(2*len(input))); err != nil {
			return nil, nil, err
		}
	}
	if !g.memory.Write(g.input.at, input) {
		return nil, nil, errors.New("opa: the room for the input is gone") // memories do not shrink
	}
	at, err := g.call(ctx, g.eval, 0, entry, g.data, g.input.at, uint32(len(input)), g.base, 0)
	if err != nil {
		return nil, nil, err
	}
	text, err := g.terminated(at)
	if err != nil {
		return nil, nil, err
	}
	g.charge(len(text))
	findings, failure = Results(text)
	return findings, failure, nil
}
