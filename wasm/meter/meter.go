package meter

// Report describes a module and its instrumentation.
type Report struct {
	Imports   []Import // functions, in the module's order
	Exports   []string // names of exported functions, in the module's order
	Start     bool     // the module has a start function
	Functions int      // defined in the module
	Loops     int
	Fills     int    // instructions whose price depends on a length
	Depth     int    // deepest nesting of blocks
	Locals    int    // maximum of one function's parameters and locals
	Merges    uint64 // see maxMerges
	Largest   int    // bytes of the largest function, before instrumentation
	Frame     uint64 // largest bound of one function's frame, in bytes
	Pages     uint32 // initial memory
	MaxPages  uint32 // maximum of the memory
	Slice     int64  // the argument for Split
}

// Section numbers. In the binary format, secDataCount comes between elements and code.
const (
	secCustom = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
	sections
)

var sectionNames = [sections]string{"custom", "type", "import", "function", "table", "memory", "global", "export", "start", "element", "code", "data", "data count"}

// order is the position of each section in a module; custom sections may be anywhere.
var order = [sections]int{secType: 1, secImport: 2, secFunction: 3, secTable: 4, secMemory: 5, secGlobal: 6, secExport: 7, secStart: 8, secElement: 9, secDataCount: 10, secCode: 11, secData: 12}

const preamble = "\x00asm\x01\x00\x00\x00"

// pass is the state of one run of Instrument: the facts decoded so far, and the new
// sections.
type pass struct {
	config Config
	report Report
	out    [sections]vector

	types    []signature
	funcs    []uint32 // the type of each function, imported ones first
	imported int
	bodies   int
	tables   []byte // the type of each table's entries
	memories int
	pages    uint32 // initial memory
	globals  []byte // their types
	mutable  int    // number of mutable globals
	elements int
	datas    int    // data segments as announced, −1 without a data count
	start    []byte // the whole section
	names    []byte // the whole section

	blockTypes [][]byte // results of types that are appended, see resultType

	body bodyPass // scratch
}

type signature struct{ params, results []byte }

// Instrument returns the module with fuel, checkpoints and limits added, as the package
// comment describes, and a report. The error is an *Error if the module is refused,
// another error if the Config is invalid. Instrument is pure: equal inputs give equal
// bytes. It neither changes nor retains the module.
//
// The engine that compiles the result must validate it, with the features of WebAssembly
// 2.0 and no others.
func Instrument(module []byte, config Config) ([]byte, Report, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, Report{}, err
	}
	p := &pass{config: config, datas: -1}
	if refused := p.read(module); refused != nil {
		return nil, Report{}, refused
	}
	p.report.Slice = config.Slice
	return p.write(), p.report, nil
}

// read decodes all sections.
func (p *pass) read(module []byte) *Error {
	r := reader{b: module, end: len(module), section: "header"}
	if len(module) > MaxSize {
		return &Error{"header", 0, limit("bytes", uint64(len(module)), MaxSize)}
	}
	if string(r.bytes(uint32(min(len(preamble), len(module))))) != preamble {
		return &Error{"header", 0, "not a WebAssembly 1 module in binary form"}
	}
	last := 0
	for r.left() > 0 && r.err == nil {
		at := r.at
		id := r.byte()
		if id >= sections {
			// For example 13, the tags of exceptions.
			r.section = "unknown"
			r.fail(at, "section number "+hexByte(id)+" is unknown or not allowed")
			break
		}
		r.section = sectionNames[id]
		s := r.part(r.u32())
		if r.err != nil {
			break
		}
		if id != secCustom {
			if order[id] <= last {
				return &Error{r.section, at, "section is repeated or out of order"}
			}
			last = order[id]
		}
		p.section(id, &s)
		if s.err == nil && s.left() > 0 {
			s.fail(s.at, "bytes after the last item")
		}
		if s.err != nil {
			return s.err
		}
	}
	if r.err != nil {
		return r.err
	}
	end := func(section, reason string) *Error { return &Error{section, len(module), reason} }
	switch {
	case p.memories == 0:
		return end("memory", "the module has no memory")
	case p.bodies != len(p.funcs)-p.imported:
		return end("code", "functions are declared and have no code")
	case p.datas > 0 && p.out[secData].n == 0:
		return end("data", "the data segments that were announced are missing")
	}
	return nil
}

func (p *pass) section(id byte, r *reader) {
	switch id {
	case secCustom:
		p.custom(r)
	case secType:
		p.typeSection(r)
	case secImport:
		p.importSection(r)
	case secFunction:
		p.functionSection(r)
	case secTable:
		p.tableSection(r)
	case secMemory:
		p.memorySection(r)
	case secGlobal:
		p.globalSection(r)
	case secExport:
		p.exportSection(r)
	case secStart:
		f := r.index("function", len(p.funcs))
		p.start, p.report.Start = appendU32(nil, f), true
	case secElement:
		p.elementSection(r)
	case secDataCount:
		p.datas = int(r.number("data segments", maxSegments))
	case secCode:
		p.codeSection(r)
	case secData:
		p.dataSection(r)
	}
}

// write encodes the module again, with its sections in the canonical order.
func (p *pass) write() []byte {
	p.append()
	size := len(preamble) + len(p.names)
	for _, v := range p.out {
		size += len(v.b) + 16
	}
	b := append(make([]byte, 0, size), preamble...)
	for _, id := range [...]byte{secType, secImport, secFunction, secTable, secMemory, secGlobal, secExport, secStart, secElement, secDataCount, secCode, secData} {
		switch {
		case id == secStart && p.start != nil:
			b = append(append(b, secStart, byte(len(p.start))), p.start...)
		case id == secDataCount && p.datas >= 0:
			n := appendU32(nil, uint32(p.datas))
			b = append(append(b, secDataCount, byte(len(n))), n...)
		default:
			b = appendSection(b, id, p.out[id])
		}
	}
	return append(b, p.names...)
}
