//go:build race

package control

// underLoad is how many plans go by under load: the race detector makes every
// one several times as slow.
const underLoad = 100
