package inprocess

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// holds says that some peer holds all of every prompt, which is often wrong.
type holds func() policies.Target

// LongestPrefix implements frontend.PrefixHolders.
func (h holds) LongestPrefix(steps []prefix.Step) (policies.Target, policies.Tokens) {
	return h(), steps[len(steps)-1].Tokens
}

// staysHere places no request at a peer.
type staysHere struct{ frontend.Placer }

// Place implements frontend.Placer.
func (staysHere) Place(policies.Request, []prefix.Step) policies.Target { return policies.Target{} }

// pullsFrom makes front ends pull what holder says, from engines that take so long for a token of a prompt, as far as
// the front ends know, that a busy host pulls in time.
func pullsFrom(holder func(own string) policies.Target) func(id string, c *frontend.Config) {
	return func(id string, c *frontend.Config) {
		c.Placer = staysHere{c.Placer}
		c.Cost = policies.Cost{D0: 0.02, D2: 0.1}
		c.Overload.Off = true
		c.PrefixPull.Holders = holds(func() policies.Target { return holder(id) })
	}
}

// idsPrompt returns the body of a completion of n token ids, which differ by seed from the position shared on.
func idsPrompt(n, shared, seed, output int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"model":%q,"max_tokens":%d,"ignore_eos":true,"prompt":[`, llm, output)
	for i := range n {
		id := 1000 + i%5000
		if i >= shared {
			id += 5000 + 7*seed
		}
		fmt.Fprintf(&b, "%d,", id)
	}
	b.Truncate(b.Len() - 1)
	return append(b.Bytes(), "]}"...)
}

// answerAt returns the answer of a front end to a body, and how many tokens of its prompt were cached.
func (r *fleetHarness) answerAt(id string, body []byte) (text, hits string) {
	r.T.Helper()
	resp, err := r.HTTP.Post("http://"+r.replica(id).Address+"/v1/completions", "application/json", bytes.NewReader(body))
	testkit.NoError(r.T, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	testkit.NoError(r.T, err)
	if resp.StatusCode != http.StatusOK {
		r.T.Fatalf("%s: %s", resp.Status, answer)
	}
	text, _, _ = strings.Cut(string(answer[bytes.Index(answer, []byte(`"text":`)):]), `","`)
	return text, string(cached.FindSubmatch(answer)[1])
}

// TestPrefixPull checks that a request whose prompt begins as one that another replica has computed gets that KV
// before it begins, and the same answer; only with the same salt and model; and that KV that a migration has brought
// is found by the next request.
func TestPrefixPull(t *testing.T) {
	t.Parallel()
	var r *fleetHarness
	r = newCheckedFleet(t, harnessConfig{replicas: 2, edit: func(f *config.Fleet) {
		f.Migration, f.Models[0].Adapters = config.Migration{Mode: config.MigrationLive}, []config.Adapter{{Name: "sql"}}
	}, front: pullsFrom(func(own string) policies.Target {
		other := map[string]string{"r0": "r1", "r1": "r0"}[own]
		return policies.Target{Replica: policies.ReplicaID(other), Address: r.replica(other).Peer}
	})})
	for _, id := range []string{"r0", "r1"} {
		r.WaitFor(id+" knows the other's load", func() bool { return r.daemons[id].Market().Status().FreshPeers == 1 })
	}
	expect := func(id string, body []byte, want int) (text string) {
		t.Helper()
		text, hits := r.answerAt(id, body)
		if hits != fmt.Sprint(want) && !(want == 0 && hits == "null") {
			t.Errorf("%s found %s tokens in its cache, want %d; pulls %+v", id, hits, want, r.fronts[id].PrefixPulls())
		}
		return text
	}
	expect("r0", idsPrompt(3000, 3000, 0, 8), 0)
	pulled := expect("r1", idsPrompt(4000, 3000, 1, 30), 2992) // whole blocks of what r0 has
	if n := r.fronts["r1"].PrefixPulls(); n.Pulled != 1 || n.Tokens != 2992 || len(n.Failed) > 0 {
		t.Errorf("%+v", n)
	}
	if n := r.daemons["r0"].PrefixesServed(); n.Prefixes != 1 || n.Tokens != 2992 {
		t.Errorf("r0 has served %+v", n)
	}
	if computed := expect("r0", idsPrompt(4000, 3000, 1, 30), 3584); computed != pulled {
		t.Errorf("the answers differ:\n%s\n%s", pulled, computed)
	}
	with := func(body []byte, more string) []byte { return append(body[:len(body)-1:len(body)-1], more+"}"...) }
	expect("r1", with(idsPrompt(4000, 3000, 2, 4), `,"cache_salt":"tenant"`), 0)
	expect("r1", withModel(idsPrompt(4000, 3000, 2, 4), "sql"), 0)
	expect("r0", with(idsPrompt(4000, 3000, 3, 4), `,"cache_salt":"tenant"`), 3000/16*16)
}

// TestPrefixPullsUnderFaults runs a load of prompts that share beginnings at replicas that pull them from each other,
// often from one that does not have them, while engines and front ends are killed and started: every answer is right,
// and nothing is left over.
func TestPrefixPullsUnderFaults(t *testing.T) {
	t.Parallel()
	const replicas = 3
	var r *fleetHarness
	r = newCheckedFleet(t, harnessConfig{replicas: replicas, control: keepReplicas, edit: func(f *config.Fleet) {
		f.Migration = config.Migration{Mode: config.MigrationLive}
		for i := range f.Replicas {
			f.Replicas[i].KVTokens = 24_000 // prefixes are evicted
		}
		f.Models[0].Context = 16_000
	}, front: pullsFrom(func(string) policies.Target {
		id := fmt.Sprintf("r%d", rand.IntN(replicas))
		return policies.Target{Replica: policies.ReplicaID(id), Address: r.replica(id).Peer}
	})})
	load := r.NewLoad(harness.LoadConfig{Workers: 6, Body: func(_ int, rng *rand.Rand) []byte {
		return idsPrompt(600+500*rng.IntN(9), 500*rng.IntN(8), rng.IntN(3), 20+rng.IntN(3))
	}})
	pulls := func() (all uint64) {
		for _, f := range r.fronts {
			all += f.PrefixPulls().Pulled
		}
		return all
	}
	r.WaitFor("prefixes are pulled", func() bool { return pulls() >= 5 })
	for i, id := range []string{"r0", "r1", "r2"} {
		r.waitUntilAllServe()
		r.killEngine(id)
		r.WaitFor("the loss is noticed", func() bool { return !r.fronts[id].Status().EngineReady })
		load.WaitForRequests(4)
		r.startEngine(id)
		before := pulls()
		r.WaitFor(fmt.Sprint("prefixes are pulled after loss ", i), func() bool { return pulls() > before })
	}
	r.waitUntilAllServe()
	load.KillDuring(func() { r.killFront("r0") }, func(error) bool { return true })
	load.WaitForRequests(6)
	r.startFront("r0")
	before := pulls()
	r.WaitFor("prefixes are pulled by and from the new process", func() bool { return r.fronts["r0"].PrefixPulls().Pulled > 0 && pulls() > before })
	load.Stop()
	load.Report()
	for id, f := range r.fronts {
		t.Logf("%s: %+v", id, f.PrefixPulls())
	}
}

// TestMigrationBringsPrefix checks that after a live migration the target's engine finds what has moved in its prefix
// cache when the conversation's next turn arrives.
func TestMigrationBringsPrefix(t *testing.T) {
	t.Parallel()
	r := newCheckedFleet(t, harnessConfig{replicas: 2, edit: func(f *config.Fleet) {
		f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive, PrefixPull: config.PrefixPullOff}, 4
	}, front: func(_ string, c *frontend.Config) { c.Placer = staysHere{c.Placer} }})
	front := "http://" + r.replica("r0").Address
	stream := r.Start(front, idsPrompt(8000, 8000, 0, forever))
	r.WaitForGrowth([]*harness.Stream{stream})
	r.drainAndWait("r0")
	r.WaitForGrowth([]*harness.Stream{stream})
	stream.Leave()
	r.WaitFor("it has ended", func() bool { return len(r.fronts["r1"].LocalLegs()) == 0 })
	if done, _ := r.migrations(); len(done) != 1 || done[0].Mode != "live" {
		t.Errorf("migrations: %+v", done)
	}
	if _, hits := r.answerAt("r1", idsPrompt(8100, 8000, 1, 4)); hits != "8000" {
		t.Errorf("the next turn finds %s tokens", hits)
	}
}

// forwardsTo places every request at one peer, and says how much of its prompt another replica holds.
type forwardsTo struct {
	frontend.Placer
	holders frontend.PrefixHolders
	peer    func() policies.Target
}

// Place implements frontend.Placer.
func (p forwardsTo) Place(_ policies.Request, steps []prefix.Step) policies.Target {
	to := p.peer()
	_, to.Held = p.holders.LongestPrefix(steps)
	return to
}

// TestPrefixPullFromSummaries checks that a replica knows from the others' summaries which of them holds a prompt,
// given as token ids or as text, and pulls it, also if it gets the prompt from another front end.
func TestPrefixPullFromSummaries(t *testing.T) {
	t.Parallel()
	var r *fleetHarness
	r = newCheckedFleet(t, harnessConfig{replicas: 3, edit: func(f *config.Fleet) { f.Migration = config.Migration{Mode: config.MigrationLive} }, front: func(id string, c *frontend.Config) {
		holders, placer := c.PrefixPull.Holders, c.Placer
		pullsFrom(func(string) policies.Target { return policies.Target{} })(id, c)
		c.PrefixPull.Holders, c.TokenizeTimeout = holders, patience // the host may be busy
		if id == "r2" {
			c.Placer = forwardsTo{placer, holders, func() policies.Target { return policies.Target{Replica: "r1", Address: r.replica("r1").Peer} }}
		}
	}})
	for _, x := range []struct {
		kind, to string
		body     func(n int) []byte
	}{
		{"ids", "r1", func(n int) []byte { return idsPrompt(3000, 0, 10*n, 4) }},
		{"text", "r1", func(n int) []byte { return harness.Prompt(1000+n, 14_000, 4) }},
		{"text that r2 forwards", "r2", func(n int) []byte { return harness.Prompt(2000+n, 14_000, 4) }},
	} {
		const prompts = 30
		for n := range prompts {
			r.answerAt("r0", x.body(n))
		}
		// What r1 is asked before it has heard of it, it computes itself.
		before, n := r.fronts["r1"].PrefixPulls(), 0
		r.WaitFor("r1 pulls a prompt that is "+x.kind, func() bool {
			if n == prompts {
				t.Fatalf("%s: none of %d prompts was pulled: %+v", x.kind, prompts, r.fronts["r1"].PrefixPulls())
			}
			_, hits := r.answerAt(x.to, x.body(n))
			n++
			now := r.fronts["r1"].PrefixPulls()
			if now.Pulled > before.Pulled && (hits == "0" || hits == "null") {
				t.Errorf("%s: %s tokens are cached after a pull: %+v", x.kind, hits, now)
			}
			return now.Pulled > before.Pulled
		})
		t.Logf("%s: pulled the prompt %d: %+v", x.kind, n, r.fronts["r1"].PrefixPulls())
	}
}
