package main

import (
	"strings"
	"testing"
)

// A wrong configuration of KV events stops the command before it serves.
func TestKVEventsConfig(t *testing.T) {
	for text, want := range map[string]string{
		`{"enable_kv_cache_events":true,"port":5557}`:         `--kv-events-config: KV events config: json: unknown field "port"`,
		`{"endpoint":"ipc:///tmp/kv"}`:                        "must begin with tcp://",
		`{"enable_kv_cache_events":true,"publisher":"kafka"}`: "must be zmq or null",
	} {
		if code, output := runFor(t.Context(), "engine", "--listen", "127.0.0.1:0", "--kv-events-config", text); code == 0 || !strings.Contains(output, want) {
			t.Errorf("%s: exit code %d, %s", text, code, output)
		}
	}
}
