package stock

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestDemo is "make demo-vllm": a client reads a stream while the replica that generates it is drained, so that it
// migrates between two stock engines. The client reads the text that one engine generates by itself.
func TestDemo(t *testing.T) {
	engines := newEngines(t, 2, options{connector: true})
	table := report.Table{Header: []string{"prompt", "migrated at", "from", "to", "way", "fetched", "computed anew", "stall", "text"}, Left: 1}
	for _, mode := range []string{config.MigrationLive, config.MigrationReprompt} {
		t.Run("mode "+mode, func(t *testing.T) {
			f := newFleet(t, engines, func(c *config.Fleet) { c.Migration.Mode = mode })
			for i, size := range []int{100, 1000, 3000} {
				table.Rows = append(table.Rows, f.demonstrate(t, randomIDs(uint64(i)+uint64(len(mode))*10, size)))
			}
			for line := range strings.Lines(f.command("migrations")) {
				t.Log(strings.TrimSpace(line))
			}
		})
	}
	var text bytes.Buffer
	testkit.NoError(t, table.Text(&text))
	for line := range strings.Lines(text.String()) {
		t.Log(strings.TrimRight(line, "\n"))
	}
}

// randomIDs returns a prompt of token ids that no other seed shares.
func randomIDs(seed uint64, n int) []int {
	rng := rand.New(rand.NewPCG(seed, 1))
	out := make([]int, n)
	for i := range out {
		out[i] = 3 + rng.IntN(1000)
	}
	return out
}

// demonstrate migrates one stream and returns its row of the table.
func (f *fleet) demonstrate(t *testing.T, ids []int) []string {
	t.Helper()
	const early = 40 // tokens
	for _, r := range f.file.Replicas {
		f.AwaitServing(r.ID)
	}
	output := min(2000, context-len(ids)-1) // so that the stream outlasts its migration on a slow host, too
	body := completion{output: output}.body(map[string]any{"prompt": ids})
	known := len(f.migrations())
	sources := f.sources(t)
	s := f.Start(f.DataPlane, body)
	f.WaitFor("the stream has some tokens", func() bool { return s.Count() >= early })
	holder := f.holder(t)
	f.Order("drain", holder)
	f.awaitDrained(holder)
	s.Wait()
	f.command("drain", "--undo", holder)

	var m control.Migration
	f.WaitFor("the migration is reported", func() bool {
		all := f.migrations()
		if len(all) > known {
			m = all[0]
		}
		return m.State == "done" || m.State == "aborted"
	})
	if m.State != "done" {
		t.Errorf("the migration is %s: %s", m.State, m.Reason)
	}
	after := f.sources(t)
	// Only now: it must not fill an engine's prefix cache.
	want := gjson.GetBytes(post(t, f.HTTP, f.engines[0].URL+"/v1/completions", body), "choices.0.text").Str
	same := "equal"
	if err := s.Check(s.Err, want); err != nil {
		t.Error(err)
		same = "different"
	}
	target := 1
	if m.To == "r0" {
		target = 0
	}
	fetched := after[target].fetched - sources[target].fetched
	computed := after[target].computed - sources[target].computed
	return []string{fmt.Sprint(len(ids)), fmt.Sprint(m.Tokens), string(m.From), string(m.To), m.Method, fmt.Sprint(fetched), fmt.Sprint(computed),
		time.Duration(m.Stall * float64(time.Second)).Round(time.Millisecond).String(), same}
}

// prompts are how many tokens of prompts an engine has fetched from others, and computed.
type prompts struct{ fetched, computed int }

// sources returns what each engine counted. An engine counts a request's prompt at its end.
func (f *fleet) sources(t *testing.T) (out []prompts) {
	t.Helper()
	f.awaitIdle()
	for _, e := range f.engines {
		const metric = "vllm:prompt_tokens_by_source_total"
		out = append(out, prompts{int(e.counter(t, metric, `source="external_kv_transfer"`)), int(e.counter(t, metric, `source="local_compute"`))})
	}
	return out
}

// holder returns the replica that runs the only request.
func (f *fleet) holder(t *testing.T) string {
	t.Helper()
	return testkit.WaitForValue(t, "a replica runs the request", func() string {
		for i, e := range f.engines {
			if e.counter(t, "vllm:num_requests_running", "") > 0 {
				return f.file.Replicas[i].ID
			}
		}
		return ""
	}, func(id string) bool { return id != "" })
}

// awaitDrained waits until no request runs at a replica.
func (f *fleet) awaitDrained(id string) {
	f.T.Helper()
	f.WaitFor(id+" is empty", func() bool {
		r := harness.Find(f.status(), id)
		return r.ID != "" && r.Residents == 0 && len(r.Drain) > 0
	})
}
