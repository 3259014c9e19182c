//go:build race

package testkit

// RaceEnabled reports whether the race detector is on: it allocates, and makes the
// compilation of modules ten times as slow.
const RaceEnabled = true
