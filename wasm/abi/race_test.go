//go:build race

package abi

// raceEnabled makes tests do less, and none count allocations.
const raceEnabled = true
