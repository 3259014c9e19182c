package opa

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// marker is the export that identifies OPA's interface, see the package comment. The
// version of the interface is checked when the module runs.
const (
	marker = "opa_wasm_abi_version"
	minor  = "opa_wasm_abi_minor_version"
)

// Sections of a module, and the kinds of imports and exports.
const (
	sectionCustom = 0
	sectionImport = 2
	sectionTable  = 4
	sectionMemory = 5
	sectionExport = 7

	externFunc, externTable, externMemory, externGlobal = 0, 1, 2, 3
)

var (
	errCut    = errors.New("opa: the module is cut short")
	errMemory = errors.New("opa: the module has a memory besides the one that it imports")
)

// Is reports whether a module has OPA's interface and not that of cascade-policy/1. It
// does not validate the module.
func Is(module []byte) bool {
	opas := false
	err := sections(module, func(id byte, body, _ []byte) error {
		if id != sectionExport {
			return nil
		}
		r := reader{b: body}
		for n := r.u32(); n > 0 && !r.bad; n-- {
			name := string(r.bytes(r.u32()))
			r.bytes(1)
			r.u32()
			switch {
			case r.bad:
			case name == marker:
				opas = true
			case name == abi.ExportArena:
				return errors.New("a module of cascade-policy/1")
			}
		}
		return nil
	})
	return opas && err == nil
}

// Adapt returns a module that defines the memory which OPA's modules import, and is
// otherwise the same: all indices stay. It checks only what it needs, because package
// meter validates the result.
func Adapt(module []byte) ([]byte, error) {
	out := append(make([]byte, 0, len(module)+16), module[:min(8, len(module))]...)
	var memory []byte // its limits
	placed := false
	err := sections(module, func(id byte, body, whole []byte) error {
		if memory != nil && !placed && id != sectionCustom && id > sectionTable {
			out = section(out, sectionMemory, append([]byte{1}, memory...))
			placed = true
		}
		switch id {
		case sectionMemory:
			return errMemory
		case sectionImport:
			var err error
			if body, memory, err = withoutMemory(body); err != nil {
				return err
			}
			out = section(out, id, body)
		default:
			out = append(out, whole...)
		}
		return nil
	})
	if err == nil && !placed {
		err = errors.New("opa: the module does not import env.memory, as OPA's do")
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// withoutMemory removes env.memory from an import section.
func withoutMemory(body []byte) (rest, limits []byte, err error) {
	r := reader{b: body}
	kept := uint32(0)
	for n := r.u32(); n > 0 && !r.bad; n-- {
		start := r.at
		from, name := string(r.bytes(r.u32())), string(r.bytes(r.u32()))
		kind := r.bytes(1)
		if r.bad {
			break
		}
		desc := r.at
		switch kind[0] {
		case externFunc:
			r.u32()
		case externTable:
			r.bytes(1)
			r.limits()
		case externMemory:
			r.limits()
			switch {
			case limits != nil:
				return nil, nil, errMemory
			case from != module || name != abi.ExportMemory:
				return nil, nil, fmt.Errorf("opa: the module imports the memory %.80q, not env.memory", from+"."+name)
			case !r.bad:
				limits = body[desc:r.at]
				continue
			}
		case externGlobal:
			r.bytes(2)
		default:
			return nil, nil, fmt.Errorf("opa: import %.80q is of the unknown kind %d", from+"."+name, kind[0])
		}
		if !r.bad {
			rest = append(rest, body[start:r.at]...)
			kept++
		}
	}
	if r.bad || r.at != len(body) {
		return nil, nil, errCut
	}
	return append(appendU32(nil, kept), rest...), limits, nil
}

// sections calls each with every section: its contents, and the whole with its header.
func sections(module []byte, each func(id byte, body, whole []byte) error) error {
	r := reader{b: module}
	r.bytes(8)
	for !r.bad && r.at < len(module) {
		start := r.at
		id := r.bytes(1)
		body := r.bytes(r.u32())
		if r.bad {
			break
		}
		if err := each(id[0], body, module[start:r.at]); err != nil {
			return err
		}
	}
	if r.bad {
		return errCut
	}
	return nil
}

func section(out []byte, id byte, body []byte) []byte {
	return append(appendU32(append(out, id), uint32(len(body))), body...)
}

func appendU32(b []byte, v uint32) []byte {
	for ; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}

// reader decodes values. After an error it is bad and returns zeros.
type reader struct {
	b   []byte
	at  int
	bad bool
}

func (r *reader) bytes(n uint32) []byte {
	if r.bad || uint64(n) > uint64(len(r.b)-r.at) {
		r.bad = true
		return nil
	}
	r.at += int(n)
	return r.b[r.at-int(n) : r.at : r.at]
}

func (r *reader) u32() uint32 {
	v := uint32(0)
	for shift := 0; shift < 35; shift += 7 {
		b := r.bytes(1)
		if r.bad {
			return 0
		}
		v |= uint32(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			return v
		}
	}
	r.bad = true
	return 0
}

func (r *reader) limits() {
	flags := r.bytes(1)
	if r.bad {
		return
	}
	r.u32()
	if flags[0]&1 != 0 {
		r.u32()
	}
}
