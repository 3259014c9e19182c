//go:build race

package slothost

const raceEnabled = true
