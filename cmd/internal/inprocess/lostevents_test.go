package inprocess

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// setEventFaults sets the faults of an engine's KV events.
func (r *fleetHarness) setEventFaults(id string, f emulator.KVEventFaults) {
	r.T.Helper()
	body := testkit.Must(json.Marshal(emulator.Faults{KVEvents: f}))
	resp, err := r.HTTP.Post(r.replica(id).Engine+"/emulator/faults", "application/json", bytes.NewReader(body))
	testkit.NoError(r.T, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		r.T.Fatalf("faults: %s", resp.Status)
	}
}

// forgeEvents connects to the address to which an engine connects, and publishes batches that the engine has not:
// its cache is empty, and what no decoder reads.
func forgeEvents(t *testing.T, address, topic string) {
	c := testkit.Must(net.Dial("tcp", address))
	defer c.Close()
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	out := append(append(greeting, 4, byte(len(ready))), ready...)
	cleared := "\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x91\x81\xa4type\xb0AllBlocksCleared\x00"
	for i, payload := range []string{cleared, "\xc1", cleared[:9]} {
		for _, frame := range []string{topic, string(binary.BigEndian.AppendUint64(nil, uint64(i))), payload} {
			flags := byte(1)
			if frame == payload {
				flags = 0
			}
			out = append(append(out, flags, byte(len(frame))), frame...)
		}
	}
	testkit.Must(c.Write(out))
	testkit.Must(c.Read(greeting)) // the other side has read ours, perhaps
}

// requireEngineTable checks that a front end knows of prompts what their engine has of them in its cache, in which
// it finds them then.
func (r *fleetHarness) requireEngineTable(id string, prompts [][]uint32) {
	r.T.Helper()
	held, engine := r.fronts[id].HeldPrefixes(), strings.TrimPrefix(r.replica(id).Engine, "http://")
	root, whole, partial := prefix.Root(llm, "", ""), 0, 0
	compute := func(ids []uint32) (cached int) {
		cached = r.ask(engine, "/v1/completions", map[string]any{"prompt": ids, "max_tokens": 1}).cached
		want := policies.Tokens((len(ids) - 1) / 16 * 16)
		r.WaitFor(id+"'s front end knows a prompt that its engine has computed", func() bool { return held.Match(root, ids) == want })
		return cached
	}
	for n := range prompts {
		// Events come in order: when those of this prompt are there, so are all before.
		compute([]uint32{uint32(20_000 + n), 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
		known := int(held.Match(root, prompts[n]))
		switch cached := compute(prompts[n]); {
		case cached != known:
			r.T.Errorf("%s: %d of the %d tokens of prompt %d are known to be cached, the engine finds %d", id, known, len(prompts[n]), n, cached)
		case known < (len(prompts[n])-1)/16*16:
			partial++
		default:
			whole++
		}
	}
	if min(whole, partial) == 0 {
		r.T.Errorf("%s: %d prompts were cached and %d were not: the test proves too little", id, whole, partial)
	}
}

// TestEventsAreLost checks that no request fails while batches of KV events are lost, late, repeated or forged, and that
// front ends then know again what their engines hold.
func TestEventsAreLost(t *testing.T) {
	t.Parallel()
	addresses := testkit.Addresses(t, 4)
	r := newCheckedFleet(t, harnessConfig{replicas: 2, control: keepReplicas, edit: func(f *config.Fleet) {
		f.Migration = config.Migration{Mode: config.MigrationLive}
		computePrompts(f)
		for i := range f.Replicas {
			f.Replicas[i].KVTokens = 24_000 // blocks are evicted
			f.Replicas[i].KVEvents = config.KVEvents{Endpoint: "tcp://" + addresses[2*i], ReplayEndpoint: "tcp://" + addresses[2*i+1], Topic: "kv"}
		}
		f.Models[0].Context = 16_000
	}})
	ids := []string{"r0", "r1"}
	follow := func(what string) {
		t.Helper()
		for _, id := range ids {
			r.WaitFor(id+" follows its engine "+what, func() bool { return r.fronts[id].PrefixStatus().Source.String() == "events" })
		}
	}
	follow("at first")
	load := r.NewLoad(harness.LoadConfig{Workers: 4, Body: func(_ int, rng *rand.Rand) []byte {
		return idsPrompt(600+500*rng.IntN(9), 500*rng.IntN(8), rng.IntN(3), 8+rng.IntN(8))
	}})
	// counts returns how many batches were missing, and how often engines seemed to be started anew, on all replicas.
	counts := func() (gaps, starts uint64) {
		for _, id := range ids {
			s, _ := r.daemons[id].KVEvents()
			gaps, starts = gaps+s.Gaps, starts+s.Restarts+s.Connections
		}
		return gaps, starts
	}
	for _, fault := range []struct {
		name           string
		faults         emulator.KVEventFaults
		forged         bool
		gaps, restarts bool // it shows in these
	}{
		{name: "lost", faults: emulator.KVEventFaults{DropEvery: 3}, gaps: true},
		{name: "late", faults: emulator.KVEventFaults{DelaySeconds: 0.2}},
		{name: "repeated", faults: emulator.KVEventFaults{DuplicateEvery: 4}, restarts: true},
		{name: "forged", forged: true, restarts: true},
	} {
		gaps, restarts := counts()
		for i, id := range ids {
			r.setEventFaults(id, fault.faults)
			if fault.forged {
				forgeEvents(t, addresses[2*i], "kv")
			}
		}
		load.WaitForRequests(8)
		r.WaitFor("batches are "+fault.name, func() bool {
			g, s := counts()
			return (!fault.gaps || g > gaps) && (!fault.restarts || s > restarts)
		})
	}
	for _, id := range ids {
		r.setEventFaults(id, emulator.KVEventFaults{})
	}
	load.WaitForRequests(8)
	load.Stop()
	load.Report()
	r.waitForIdle()
	follow("at last")
	var prompts [][]uint32
	for n := range 24 {
		var body struct{ Prompt []uint32 }
		testkit.NoError(t, json.Unmarshal(idsPrompt(600+500*(n%9), 500*(n%8), n%3, 1), &body))
		prompts = append(prompts, body.Prompt)
	}
	for _, id := range ids {
		r.requireEngineTable(id, prompts)
		s, _ := r.daemons[id].KVEvents()
		if c := r.fronts[id].PrefixStatus().Counts; s.Lost > 0 || c.Removed == 0 {
			t.Errorf("%s: %d batches were not replayed, %d blocks were evicted: %+v", id, s.Lost, c.Removed, s)
		}
	}
}
