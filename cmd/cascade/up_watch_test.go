package main

import (
	"os"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

const watched = `models: [{name: m, context: 4096, profile: h200-llama-3.1-8b}]
replicas:
- {id: r0, address: "127.0.0.1:9000", peer: "127.0.0.1:9100", engine: "http://127.0.0.1:8000"}
`

// replace puts a file in place of another at once, as editors do.
func replace(t *testing.T, path, text string) {
	t.Helper()
	testkit.NoError(t, os.WriteFile(path+"~", []byte(text), 0o600))
	testkit.NoError(t, os.Rename(path+"~", path))
}

// TestMerge: who runs in this process keeps its bound address and may only
// drain; others come and go.
func TestMerge(t *testing.T) {
	asked := []config.Replica{{ID: "a", Address: "127.0.0.1:0"}, {ID: "b", Address: "127.0.0.1:0"}}
	running := []config.Replica{{ID: "a", Address: "127.0.0.1:9000"}, {ID: "b", Address: "127.0.0.1:9001"}}
	drained, moved, other := asked[0], asked[0], config.Replica{ID: "c", Address: "127.0.0.1:9"}
	drained.Drain, moved.TP = true, 2

	got, err := mergeReplicas(asked, running, []config.Replica{other, drained})
	want := running[0]
	want.Drain = true
	if err != nil || len(got) != 2 || got[0] != other || got[1] != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := mergeReplicas(asked, running, []config.Replica{moved, asked[1]}); err == nil || !strings.Contains(err.Error(), "replica a runs in this process") {
		t.Errorf("a changed replica: %v", err)
	}
	if asked[0].Drain || running[0].Drain {
		t.Error("merge changed what it was given")
	}
}
