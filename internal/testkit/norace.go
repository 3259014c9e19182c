//go:build !race

package testkit

// RaceEnabled is explained in race.go.
const RaceEnabled = false
