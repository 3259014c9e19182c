//go:build race

package tcp

const raced = true // the race detector is slow, and allocates
