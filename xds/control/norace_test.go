//go:build !race

package control

// underLoad is how many plans go by under load.
const underLoad = 1000
