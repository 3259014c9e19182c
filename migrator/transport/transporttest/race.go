//go:build race

package transporttest

// raced says that the race detector is on, which allocates on its own.
const raced = true
