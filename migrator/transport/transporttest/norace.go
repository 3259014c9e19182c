//go:build !race

package transporttest

const raced = false
