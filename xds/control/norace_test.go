//go:build !race

package control

// underLoad is the number of plans under load.
const underLoad = 1000
