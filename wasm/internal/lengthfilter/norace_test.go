//go:build !race

package lengthfilter

const raceEnabled = false
