//go:build race

package abi

// raceEnabled makes tests do less and disables counts of allocations.
const raceEnabled = true
