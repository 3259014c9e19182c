//go:build !race

package abi

// raceEnabled is explained in race_test.go.
const raceEnabled = false
