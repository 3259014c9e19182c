//go:build !race

package swap

// raceEnabled is explained in race_test.go.
const raceEnabled = false
