//go:build !race

package policytest

// RaceEnabled is explained in race.go.
const RaceEnabled = false
