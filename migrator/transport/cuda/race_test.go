//go:build race

package cuda

const raced = true // the race detector is slow, and allocates
