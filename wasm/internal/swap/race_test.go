//go:build race

package swap

// raceEnabled: the race detector allocates where nothing else does.
const raceEnabled = true
