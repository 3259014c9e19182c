//go:build !race

package meter

// raceEnabled is explained in race_test.go.
const raceEnabled = false
