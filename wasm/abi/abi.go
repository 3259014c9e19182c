package abi

// Name identifies the protocol in signatures and manifests.
const Name = "cascade-policy/1"

// Names that modules export and import.
const (
	ExportMemory   = "memory"
	ExportArena    = "cs_arena_v1"
	ExportInit     = "_initialize"
	ExportDeferred = "cs_run_deferred_v1"
	ImportModule   = "cascade_v1"
	ImportLog      = "log"
	ImportFail     = "fail"
)

// Kind is the kind of decision that a call asks for.
type Kind uint16

// The kinds. Frames carry their numbers, which never change.
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

// kindNames holds names and exports in the order of the kinds' numbers.
var kindNames = [...]struct{ name, export string }{
	{"configure", "cs_configure_v1"},
	{"partition", "cs_partition_v1"},
	{"refine", "cs_refine_v1"},
	{"bid-quote", "cs_bid_quote_v1"},
	{"bid-select", "cs_bid_select_v1"},
	{"outlier", "cs_outlier_v1"},
	{"place", "cs_place_v1"},
	{"guard", "cs_guard_v1"},
}

// NumKinds is the number of kinds, Configure included. Kinds count from 0.
const NumKinds = Kind(len(kindNames))

// Codecs has the codec of each kind, for what does not depend on its types. Guests do not
// use it: they would carry all kinds.
var Codecs = [NumKinds]interface {
	CheckAnswer(frame, arena []byte, result uint64) error
}{
	&ConfigureCodec, &PartitionCodec, &RefineCodec, &QuoteCodec, &SelectCodec, &OutlierCodec, &PlaceCodec, &GuardCodec,
}

// String returns the kind's name, as in policy slots and on the command line.
func (k Kind) String() string {
	if k < NumKinds {
		return kindNames[k].name
	}
	return "unknown kind"
}

// ParseKind returns the kind with the name, Configure included; ok is false when
// there is none.
func ParseKind(name string) (k Kind, ok bool) {
	for k := range NumKinds {
		if kindNames[k].name == name {
			return k, true
		}
	}
	return NumKinds, false
}

// Export returns the name of the exported function that decides the kind, "" for
// an unknown kind.
func (k Kind) Export() string {
	if k < NumKinds {
		return kindNames[k].export
	}
	return ""
}

// rules says for each kind what an answer must satisfy, besides its form.
var rules = [NumKinds]string{
	Partition: "at least 1 stage and at most the limit, ends that ascend, replicas in each stage and all of them in use, a finite cost",
	Refine:    "low < proposal < high",
	Quote:     "load and start are not negative",
	Select:    "the index is that of a bid",
	Outlier:   "the excess is from 0 to the own load",
	Place:     "the index is that of a peer, and a forwarded request stays",
	Guard:     "an allowed plan has no value, a denied one no stage or one of the proposed plan",
}

// Rule returns what an answer of the kind must satisfy; ErrRule means that it does not.
func (k Kind) Rule() string { return rules[k] }

// Status is the upper half of a result. All but OK and None are errors.
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

// Error implements error.
func (s Status) Error() string {
	switch s {
	case OK:
		return "policy answered"
	case None:
		return "policy decided for none"
	case Unsupported:
		return "policy does not support this kind of call, or needs a newer host"
	case BadFrame:
		return "policy could not parse the frame"
	case Short:
		return "policy needs more space for its output"
	case Failed:
		return "policy gave up"
	}
	return "policy returned an unknown status"
}

// Result packs a status and a value into a result, as modules return it.
func Result(s Status, value uint32) uint64 { return uint64(s)<<32 | uint64(value) }

// Unpack is the inverse of Result.
func Unpack(result uint64) (Status, uint32) { return Status(result >> 32), uint32(result) }

// Region packs an address and a size, as cs_arena_v1 returns them.
func Region(address, size uint32) uint64 { return uint64(address)<<32 | uint64(size) }

// UnpackRegion is the inverse of Region.
func UnpackRegion(r uint64) (address, size uint32) { return uint32(r >> 32), uint32(r) }

// Error is the reason why arguments cannot be encoded or an answer cannot be decoded.
// The values are constants, so that the call path does not allocate.
type Error string

// Error implements error.
func (e Error) Error() string { return string(e) }

// The errors on the host's side, besides Status.
const (
	// ErrShort means that the arena is too small for the frame. The function that
	// returns it also returns the size that the frame needs.
	ErrShort = Error("arena is too small for the frame: ask the guest for a larger one")
	// ErrInput means that the arguments cannot be encoded: the frame would exceed
	// 2^31 bytes, a slice has the wrong length, or the state exceeds MaxState.
	ErrInput = Error("arguments exceed the frame limit (2147483648 bytes), the state limit (4096 bytes), or do not fit each other")
	// ErrOutput means that the output is truncated or lies outside its area.
	ErrOutput = Error("policy's output is malformed")
	// ErrRule means that the output is well formed and breaks a rule of its kind.
	ErrRule = Error("policy's output breaks a rule of its kind")
)
