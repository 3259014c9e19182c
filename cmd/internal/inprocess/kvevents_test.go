package inprocess

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/loopback"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestKVEvents checks that front ends know what their engines hold by the engines' KV events, whether the engine
// connects to the migrator or listens.
func TestKVEvents(t *testing.T) {
	addresses := loopback.Addresses(t, 4)
	r := newCheckedFleet(t, harnessConfig{replicas: 2, control: bePatient, edit: func(f *config.Fleet) {
		f.Migration = config.Migration{Mode: config.MigrationLive}
		f.Replicas[0].KVEvents = config.KVEvents{Endpoint: "tcp://" + addresses[0], ReplayEndpoint: "tcp://" + addresses[1], Topic: "kv@r0"}
		f.Replicas[1].KVEvents = config.KVEvents{Endpoint: "tcp://*" + addresses[2][len("127.0.0.1"):], ReplayEndpoint: "tcp://" + addresses[3], Topic: "kv@r1"}
	}})
	for i := range 2 {
		id := fmt.Sprint("r", i)
		held := r.fronts[id].HeldPrefixes()
		r.WaitFor(id+" follows its engine", func() bool { return held.Status().Source.String() == "events" })
		got := r.ask(strings.TrimPrefix(r.replica(id).Engine, "http://"), "/v1/completions", map[string]any{"prompt": song(i, 600), "max_tokens": 100})
		all := append(got.prompt, got.output...)
		want := policies.Tokens((len(all) - 1) / 16 * 16)
		testkit.WaitForValue(t, id+" knows what its engine has computed", func() policies.Tokens {
			return held.Match(prefix.Root(llm, "", ""), all)
		}, func(n policies.Tokens) bool { return n == want })
	}
}
