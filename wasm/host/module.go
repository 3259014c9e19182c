package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/tetratelabs/wazero/api"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// Module is a compiled module, from which instances are made. Its methods are
// safe for concurrent use.
type Module struct {
	config      Config
	sum         [sha256.Size]byte
	kinds       []abi.Kind
	decides     [abi.NumKinds]bool
	hasDeferred bool // exports ExportDeferred
	report      meter.Report
	program     *program
	log         logLimiter
	opa         bool         // compiled by OPA, see package opa
	live        atomic.Int64 // instances that are not closed
	closed      atomic.Bool
}

// ErrClosed is returned by Instantiate after Close.
var ErrClosed = errors.New("host: the module is closed")

// Load instruments and compiles a module as its author built it; it does not keep the
// bytes. It takes milliseconds for a small module, and a second for one in Go that is
// not in the cache. Whether it refuses a module is deterministic, unlike errors of the
// cache.
func Load(ctx context.Context, config Config, original []byte) (*Module, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Module{config: config, sum: sha256.Sum256(original)}
	m.log.logger = config.Logger
	if opa.Is(original) {
		if original, err = m.adaptOPA(original); err != nil {
			return nil, err
		}
	}
	code, err := m.instrument(original)
	if err != nil {
		return nil, err
	}
	if m.program, err = config.Engine.program(ctx, config, joinData(code)); err != nil {
		return nil, err
	}
	err = m.check()
	if err == nil && m.opa {
		err = m.checkOPAStart()
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// instrument meters the module's code and determines its kinds.
func (m *Module) instrument(original []byte) ([]byte, error) {
	c := &m.config
	m.kinds = slices.Compact(slices.Sorted(slices.Values(c.Kinds)))
	if len(m.kinds) == 0 {
		// The memory limit depends on the kinds that the module exports.
		all := make([]abi.Kind, 0, abi.NumKinds)
		for k := range abi.NumKinds {
			all = append(all, k)
		}
		c.Meter.Pages, c.Meter.Stack = c.memoryAndStack(all)
		_, report, err := meter.Instrument(original, c.Meter)
		if err != nil {
			return nil, err
		}
		for _, k := range all {
			if slices.Contains(report.Exports, k.Export()) {
				m.kinds = append(m.kinds, k)
			}
		}
	}
	if len(m.kinds) == 0 || len(m.kinds) == 1 && m.kinds[0] == abi.Configure {
		return nil, errors.New("host: the module exports no policy function")
	}
	c.Meter.Pages, c.Meter.Stack = c.memoryAndStack(m.kinds)
	code, report, err := meter.Instrument(original, c.Meter)
	if err != nil {
		return nil, err
	}
	m.report = report
	if !slices.Contains(m.kinds, abi.Configure) && slices.Contains(report.Exports, abi.Configure.Export()) {
		m.kinds = slices.Insert(m.kinds, 0, abi.Configure)
	}
	for _, k := range m.kinds {
		m.decides[k] = true
	}
	return code, nil
}

// check returns an error if the module does not implement cascade-policy/1.
func (m *Module) check() error {
	functions, memories := m.program.compiled.ExportedFunctions(), m.program.compiled.ExportedMemories()
	if _, ok := memories[abi.ExportMemory]; !ok {
		return fmt.Errorf("host: the module does not export its memory as %q", abi.ExportMemory)
	}
	if m.opa {
		return opa.Check(m.program.compiled)
	}
	call := func(name string) error {
		f, ok := functions[name]
		switch {
		case !ok:
			return fmt.Errorf("host: the module does not export %s", name)
		case !slices.Equal(f.ParamTypes(), []api.ValueType{api.ValueTypeI32}) || !slices.Equal(f.ResultTypes(), []api.ValueType{api.ValueTypeI64}):
			return fmt.Errorf("host: the module's %s must take an i32 and return an i64", name)
		}
		return nil
	}
	if err := call(abi.ExportArena); err != nil {
		return err
	}
	for _, k := range m.kinds {
		if err := call(k.Export()); err != nil {
			return err
		}
	}
	if _, m.hasDeferred = functions[abi.ExportDeferred]; m.hasDeferred {
		if err := call(abi.ExportDeferred); err != nil {
			return err
		}
	}
	if f, ok := functions[abi.ExportInit]; ok && len(f.ParamTypes())+len(f.ResultTypes()) > 0 {
		return fmt.Errorf("host: the module's %s must take and return nothing", abi.ExportInit)
	}
	for _, f := range m.program.compiled.ImportedFunctions() {
		from, name, _ := f.Import()
		h, ok := imports[meter.Import{Module: from, Name: name}]
		if !ok {
			return fmt.Errorf("host: the module imports %s.%s, which the host does not provide", from, name)
		}
		if !slices.Equal(f.ParamTypes(), h.params) || !slices.Equal(f.ResultTypes(), h.results) {
			return fmt.Errorf("host: the module imports %s.%s with the wrong type", from, name)
		}
	}
	return nil
}

// Kinds returns the kinds that the module decides, in the order of their numbers.
func (m *Module) Kinds() []abi.Kind { return slices.Clone(m.kinds) }

// Decides reports whether the module decides a kind.
func (m *Module) Decides(k abi.Kind) bool { return k < abi.NumKinds && m.decides[k] }

// HasDeferred reports whether Instance.RunDeferred does anything.
func (m *Module) HasDeferred() bool { return m.hasDeferred }

// SHA256 returns the digest of the module as its author built it.
func (m *Module) SHA256() [sha256.Size]byte { return m.sum }

// Limit returns the limit in force for a kind.
func (m *Module) Limit(k abi.Kind) Limit { return m.config.Limits[k] }

// Report returns what package meter found in the module.
func (m *Module) Report() meter.Report { return m.report }

// Instances returns the number of open instances.
func (m *Module) Instances() int { return int(m.live.Load()) }

// Close frees the module. Its machine code is unmapped when Go's garbage collector finds
// it unreferenced, unless another module of the Engine shares it. All instances must
// have been closed: a call into unmapped code crashes the process.
func (m *Module) Close() error {
	if !m.closed.CompareAndSwap(false, true) {
		return nil
	}
	return m.program.release()
}
