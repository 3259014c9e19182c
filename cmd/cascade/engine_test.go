package main

import (
	"net"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
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

// A wrong configuration of KV events stops the command before it serves.
func TestKVEventsConfig(t *testing.T) {
	for text, want := range map[string]string{
		`{"enable_kv_cache_events":true,"port":5557}`:         `--kv-events-config: KV events config: json: unknown field "port"`,
		`{"endpoint":"ipc:///tmp/kv"}`:                        "must begin with tcp://",
		`{"enable_kv_cache_events":true,"publisher":"kafka"}`: "must be zmq or null",
	} {
		var out, errs testkit.Log
		if code := run(t.Context(), []string{"engine", "--listen", "127.0.0.1:0", "--kv-events-config", text}, &out, &errs); code == 0 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %s", text, code, &errs)
		}
	}
}
