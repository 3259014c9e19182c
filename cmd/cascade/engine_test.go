package main

import (
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

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
