//go:build !race

package hosttest

const raceEnabled = false
