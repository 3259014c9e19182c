//go:build !race

package main

// underRace says that the race detector is in the test binary.
const underRace = false
