package main

import (
	"net"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// A side channel without a host is on loopback, and one on all addresses is rejected: other engines
// are given its address, and whoever can connect reads KV.
func TestSideChannelIsOnLoopback(t *testing.T) {
	for _, address := range []string{":0", "127.0.0.1:0"} {
		l := testkit.Must(listenSideChannel(address))
		if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
			t.Errorf("%s listens on %v", address, ip)
		}
		testkit.NoError(t, l.Close())
	}
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "5600", "256.0.0.1:1"} {
		_, err := listenSideChannel(address)
		testkit.WantError(t, err, "--kv-transfer")
	}
}
