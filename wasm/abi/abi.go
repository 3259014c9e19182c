package abi

// Name of the protocol, as signatures and manifests give it.
const Name = "cascade-policy/1"

// What modules export and import.
const (
	ExportMemory = "memory"
	ExportArena  = "cs_arena_v1"
	ExportInit   = "_initialize"
	ExportRest   = "cs_rest_v1"
	ImportModule = "cascade_v1"
	ImportLog    = "log"
	ImportFail   = "fail"
)

// Kind is what a call decides.
type Kind uint16

// The kinds. Their numbers are in frames and never change.
const (
	Configure Kind = iota
	Partition
	Refine
	Quote
	Select
	Outlier
	Place
	Guard
)

// kinds holds the names and exports in the order of the numbers.
var kinds = [...]struct{ name, export string }{
	{"configure", "cs_configure_v1"},
	{"partition", "cs_partition_v1"},
	{"refine", "cs_refine_v1"},
	{"bid-quote", "cs_bid_quote_v1"},
	{"bid-select", "cs_bid_select_v1"},
	{"outlier", "cs_outlier_v1"},
	{"place", "cs_place_v1"},
	{"guard", "cs_guard_v1"},
}

// Kinds is how many kinds there are, configure included; they number from 0.
const Kinds = Kind(len(kinds))

// String is the kind's name, as in slots and on the command line.
func (k Kind) String() string {
	if k < Kinds {
		return kinds[k].name
	}
	return "unknown kind"
}

// Export is the name of the function that decides the kind, "" for an unknown
// one.
func (k Kind) Export() string {
	if k < Kinds {
		return kinds[k].export
	}
	return ""
}

// Status is the upper half of a result. Those other than OK and None are errors.
type Status uint32

// The statuses, see the package comment.
const (
	OK Status = iota
	None
	Unsupported
	BadFrame
	Short
	Failed
)

// Error says what the guest said.
func (s Status) Error() string {
	switch s {
	case OK:
		return "policy answered"
	case None:
		return "policy decided for nothing"
	case Unsupported:
		return "policy does not support this kind of call"
	case BadFrame:
		return "policy takes the frame for malformed"
	case Short:
		return "policy needs more room for its output"
	case Failed:
		return "policy gave up"
	}
	return "policy returned an unknown status"
}

// Result packs a status and a value, as functions of modules return them.
func Result(s Status, value uint32) uint64 { return uint64(s)<<32 | uint64(value) }

// Unpack is the inverse of Result.
func Unpack(result uint64) (Status, uint32) { return Status(result >> 32), uint32(result) }

// Region packs an address and a size, as cs_arena_v1 returns them.
func Region(address, size uint32) uint64 { return uint64(address)<<32 | uint64(size) }

// UnpackRegion is the inverse of Region.
func UnpackRegion(r uint64) (address, size uint32) { return uint32(r >> 32), uint32(r) }

// Error is what is wrong with an input to be encoded or an answer to be decoded.
// The values are constants, so that the call path does not allocate them.
type Error string

// Error implements error.
func (e Error) Error() string { return string(e) }

// The errors of the host's half, besides Status.
const (
	// ErrShort: the arena is too small for the frame. Size says what it needs.
	ErrShort = Error("arena is too small for the frame: ask the guest for a larger one")
	// ErrInput: the words cannot be encoded: more than 2^31 bytes, a slice of
	// the wrong length, a state over MaxState.
	ErrInput = Error("words do not fit into a frame")
	// ErrOutput: the output lies outside its room, or is cut short.
	ErrOutput = Error("policy's output is malformed")
	// ErrRule: the output is well formed and breaks a rule of its kind.
	ErrRule = Error("policy's output breaks a rule of its kind")
)
