//go:build race

package transporttest

// raced reports whether the race detector is on, which allocates by itself.
const raced = true
