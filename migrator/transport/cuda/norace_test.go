//go:build !race

package cuda

const raced = false
