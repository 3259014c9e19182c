package meter

// The names under which a rewritten module exports its meter: mutable globals
// of type i64. A module that exports one of these names itself is refused.
const (
	FuelExport   = "cs_fuel"   // ticks left in this slice; written by host and module
	BudgetExport = "cs_budget" // ticks left beyond it; written by host and module
	KillExport   = "cs_kill"   // not 0: end the call; written by the host alone
	StackExport  = "cs_stack"  // bytes of stack left; written by the module alone
)

// The prices, see the package comment. They are constants because fuel must be
// the same everywhere: a change of any is a new Version.
const (
	SegmentWeight = 256  // instructions per tick beyond the first
	FillBytes     = 1024 // bytes filled or copied per tick
	FillEntries   = 128  // table entries filled or copied per tick
	GrowWeight    = 64   // instructions that a grow counts as, and a ref.func
)

// Version names the rewriting: what is added and what it costs. Results of
// different versions must not share a cache, nor fuel counts a comparison.
const Version = "cascade-meter/3"

// MaxFuel is the most fuel a call can be given: sums of it and of any debt stay
// far from the ends of an int64.
const MaxFuel = 1 << 61

// Split divides the fuel for a call into what the host writes to the fuel and
// to the budget global of a module that was rewritten with that slice. Amounts
// outside [0, MaxFuel] are brought to its ends.
func Split(total, slice int64) (fuel, budget uint64) {
	total = min(max(total, 0), MaxFuel)
	slice = min(max(slice, 0), total)
	return uint64(slice), uint64(total - slice)
}

// Left returns what a call has left, from the two globals: below 0 exactly when
// it was cut because it ran out. What it used is the fuel given less Left; for
// a call that was cut that includes what it could not pay.
func Left(fuel, budget uint64) int64 { return int64(fuel) + int64(budget) }
