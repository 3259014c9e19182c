package meter

// The exports of an instrumented module: mutable globals of type i64. A module that
// exports one of these names itself is refused.
const (
	FuelExport   = "cs_fuel"   // ticks left in this slice; host and module write it
	BudgetExport = "cs_budget" // ticks left beyond this slice; host and module write it
	KillExport   = "cs_kill"   // not 0: end the call; only the host writes it
	StackExport  = "cs_stack"  // bytes of stack left; only the module writes it
)

// The prices, see the package comment. They are constants because fuel must be the same
// everywhere: if one changes, Version changes.
const (
	SegmentWeight = 256  // instructions per tick beyond the first
	FillBytes     = 1024 // bytes filled or copied per tick
	FillEntries   = 128  // table entries filled or copied per tick
	GrowWeight    = 64   // weight of memory.grow, table.grow and ref.func, in instructions
)

// Version identifies the added code and the prices. Results of different versions must
// not share a cache, and their fuel must not be compared.
const Version = "cascade-meter/3"

// MaxFuel bounds the fuel of a call, so that sums with any debt do not overflow an
// int64.
const MaxFuel = 1 << 61

// Split divides the fuel of a call into the values for the fuel and the budget globals of
// a module that was instrumented with that slice. It limits total to [0, MaxFuel].
func Split(total, slice int64) (fuel, budget uint64) {
	total = min(max(total, 0), MaxFuel)
	slice = min(max(slice, 0), total)
	return uint64(slice), uint64(total - slice)
}

// Left returns the fuel that a call has left, from the two globals. It is below 0 if and
// only if the call ran out of fuel; the consumed fuel, which is the fuel given minus
// Left, then includes the debt that the call could not pay.
func Left(fuel, budget uint64) int64 { return int64(fuel) + int64(budget) }
