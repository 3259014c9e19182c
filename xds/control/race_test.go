//go:build race

package control

// underLoad is the number of plans under load: the race detector makes each
// several times as slow.
const underLoad = 100
