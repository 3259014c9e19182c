package policydev

import (
	"context"
	"fmt"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	"github.com/cascadeinfer/cascade/wasm/meter"
)

// Inspection describes a module as a host sees it.
type Inspection struct {
	File    string      `json:"file"`
	SHA256  string      `json:"sha256"`
	Bytes   int         `json:"bytes"`
	Refused string      `json:"refused,omitempty"` // why hosts refuse it
	Kinds   []KindLimit `json:"kinds"`
	Imports []string    `json:"imports"`
	Exports []string    `json:"exports"`

	Functions int    `json:"functions"`
	Loops     int    `json:"loops"`
	Largest   int    `json:"largest_function_bytes"`
	Memory    uint64 `json:"memory_bytes"`     // initial memory
	MaxMemory uint64 `json:"max_memory_bytes"` // the limit of its kinds
	Started   uint32 `json:"started_bytes"`    // memory of a new instance
	Metered   int    `json:"metered_bytes"`    // size of the module with its meter

	MeterVersion string `json:"meter"`
	ABI          string `json:"abi"`
}

// Err returns an error if hosts refuse the module.
func (in Inspection) Err() error {
	if in.Refused == "" {
		return nil
	}
	return fmt.Errorf("%s: hosts reject this module: %s", in.File, in.Refused)
}

// KindLimit is a kind that a module decides, and the limits of a call.
type KindLimit struct {
	Kind   string `json:"kind"`
	Fuel   int64  `json:"fuel"`        // ticks
	Micros int64  `json:"wall_micros"` // of wall time
	Pages  uint32 `json:"pages"`       // of memory, 64 KiB each
	Frame  int    `json:"frame_bytes"`
}

// Inspect reads a module, instruments it with a meter, compiles it and makes an instance.
// For a module that a host would refuse it returns no error: Refused has the reason, and
// the fields of later steps are empty.
func Inspect(ctx context.Context, path string) (Inspection, error) {
	code, err := ReadModule(path)
	if err != nil {
		return Inspection{}, err
	}
	in := Inspection{File: path, SHA256: lifecycle.Sum(code).String(), Bytes: len(code), MeterVersion: meter.Version, ABI: abi.Name,
		Kinds: []KindLimit{}, Imports: []string{}, Exports: []string{}}
	metered, report, err := instrument(code, &in)
	in.describe(report)
	in.Metered = len(metered)
	if err != nil {
		in.Refused = err.Error()
		return in, nil
	}
	m, err := host.Load(ctx, host.Config{Cache: cacheDir()}, code)
	if err != nil {
		in.Refused = err.Error()
		return in, ctx.Err()
	}
	defer m.Close()
	in.describe(m.Report())
	for _, k := range m.Kinds() {
		l := m.Limit(k)
		in.Kinds = append(in.Kinds, KindLimit{k.String(), l.Fuel, l.Wall.Microseconds(), l.Pages, l.Frame})
	}
	i, err := m.Instantiate()
	if err != nil {
		in.Refused = err.Error()
		return in, nil
	}
	_, in.Started = i.Memory()
	return in, i.Close()
}

// instrument adds the meter to a module, as a host does.
func instrument(code []byte, in *Inspection) ([]byte, meter.Report, error) {
	if !opa.Is(code) {
		return meter.Instrument(code, meter.Config{})
	}
	in.ABI = opa.Name
	code, err := opa.Adapt(code)
	if err != nil {
		return nil, meter.Report{}, err
	}
	var c meter.Config
	for _, i := range opa.Imports() {
		c.Imports = append(c.Imports, meter.Import{Module: i.Module, Name: i.Name})
	}
	return meter.Instrument(code, c)
}

func (in *Inspection) describe(r meter.Report) {
	in.Imports = in.Imports[:0]
	for _, i := range r.Imports {
		in.Imports = append(in.Imports, i.String())
	}
	in.Exports = append(in.Exports[:0], r.Exports...)
	in.Functions, in.Loops, in.Largest = r.Functions, r.Loops, r.Largest
	in.Memory, in.MaxMemory = uint64(r.Pages)<<16, uint64(r.MaxPages)<<16
}
