//go:build race

package swap

// raceEnabled disables counts of allocations: the race detector allocates.
const raceEnabled = true
