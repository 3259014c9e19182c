package inprocess

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/loopback"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestKVEvents checks that front ends know what their engines hold by the engines' KV events, whether the engine
// connects to the migrator or listens.
func TestKVEvents(t *testing.T) {
	addresses := loopback.Addresses(t, 4)
	r := newCheckedFleet(t, harnessConfig{replicas: 2, control: keepReplicas, edit: func(f *config.Fleet) {
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

// TestConversationStaysByEvents checks that a turn is sent to the replica whose engine has published that it holds the
// turn before, and that an engine that is started anew holds nothing.
func TestConversationStaysByEvents(t *testing.T) {
	t.Parallel()
	addresses := loopback.Addresses(t, 4)
	r := newCheckedFleet(t, harnessConfig{replicas: 2, control: keepReplicas, front: func(_ string, c *frontend.Config) { c.TokenizeTimeout = patience }, edit: func(f *config.Fleet) {
		f.Migration = config.Migration{Mode: config.MigrationLive}
		computePrompts(f)
		for i := range f.Replicas {
			f.Replicas[i].KVEvents = config.KVEvents{Endpoint: "tcp://" + addresses[2*i], ReplayEndpoint: "tcp://" + addresses[2*i+1], Topic: "kv"}
		}
	}})
	r.waitUntilPlacing()
	engine := strings.TrimPrefix(r.replica("r0").Engine, "http://")
	awaitPrompt := func(what string, ids []uint32) {
		t.Helper()
		r.WaitFor(what, func() bool {
			return r.fronts["r0"].PrefixStatus().Source.String() == "events" && r.fronts["r0"].HeldPrefixes().Match(prefix.Root(llm, "", ""), ids) >= policies.Tokens(len(ids))*9/10
		})
	}
	// On a busy host a load may be too old or the engine too late with the tokens of a text, and a turn stays where it
	// is sent: of several conversations, one lands.
	const conversations = 10
	landed := 0
	for i := 0; landed == 0 && i < conversations; i++ {
		text := song(i, 4096)
		// The front end of r0 sees nothing of this, other than by events.
		first := r.ask(engine, "/v1/completions", map[string]any{"prompt": text, "max_tokens": 20})
		awaitPrompt("the events of r0 arrive", first.prompt)
		r.awaitHolder("r1", "r0", first.prompt)
		second := r.ask(r.replica("r1").Address, "/v1/completions", map[string]any{"prompt": text + first.text + " and then? ", "max_tokens": 20})
		if second.cached >= len(first.prompt)*9/10 {
			landed++
		}
	}
	if landed == 0 {
		t.Errorf("of %d conversations, none had its next turn where the turn before is cached", conversations)
	}

	r.killEngine("r0")
	r.WaitFor("the loss is noticed", func() bool {
		s, _ := r.daemons["r0"].KVEvents()
		return !s.Connected && !r.fronts["r0"].Status().EngineReady
	})
	before, _ := r.daemons["r0"].KVEvents()
	r.startEngine("r0")
	r.WaitFor("r0 is ready", func() bool { return r.fronts["r0"].Status().EngineReady })
	third := r.ask(engine, "/v1/completions", map[string]any{"prompt": song(conversations, 1024), "max_tokens": 20})
	awaitPrompt("the events of the new engine arrive", third.prompt)
	if n, most := r.fronts["r0"].PrefixStatus().Blocks, 2*len(third.prompt)/16; n > most {
		t.Errorf("%d blocks are known of an engine that holds a prompt of %d tokens", n, len(third.prompt))
	}
	if s, ok := r.daemons["r0"].KVEvents(); !ok || s.Connections <= before.Connections || s.Malformed+s.Rejected > 0 {
		t.Errorf("%+v, before the engine was started anew %+v", s, before)
	}
}
