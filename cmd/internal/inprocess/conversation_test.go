package inprocess

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// turn is what a client knows of one answer.
type turn struct {
	prompt []uint32 // token ids
	output []uint32
	text   string
	cached int // tokens of the prompt that the engine had
}

// ask sends a request to the address of a front end, as a stream, and returns the answer. It fails the test if
// the request does.
func (r *fleetHarness) ask(front, path string, body map[string]any) (out turn) {
	r.T.Helper()
	body["stream"], body["return_token_ids"], body["stream_options"] = true, true, map[string]any{"include_usage": true}
	body["model"], body["ignore_eos"] = llm, true
	resp, err := r.HTTP.Post("http://"+front+path, "application/json", bytes.NewReader(testkit.Must(json.Marshal(body))))
	testkit.NoError(r.T, err)
	defer resp.Body.Close()
	answer := string(testkit.Must(io.ReadAll(resp.Body)))
	if resp.StatusCode != http.StatusOK || !strings.HasSuffix(answer, "data: [DONE]\n\n") {
		r.T.Fatalf("%s of %s: %s %.500s", path, front, resp.Status, answer)
	}
	for line := range strings.SplitSeq(answer, "\n") {
		var event struct {
			Prompt  []uint32 `json:"prompt_token_ids"`
			Choices []struct {
				Text   string
				Delta  struct{ Content string }
				IDs    []uint32 `json:"token_ids"`
				Prompt []uint32 `json:"prompt_token_ids"`
			}
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		data, ok := strings.CutPrefix(line, "data: {")
		if !ok {
			continue
		}
		testkit.NoError(r.T, json.Unmarshal([]byte("{"+data), &event))
		out.prompt, out.cached = append(out.prompt, event.Prompt...), max(out.cached, event.Usage.Details.Cached)
		for _, c := range event.Choices {
			out.prompt, out.output, out.text = append(out.prompt, c.Prompt...), append(out.output, c.IDs...), out.text+c.Text+c.Delta.Content
		}
	}
	return out
}

// nearlyAll is how many per cent of a prompt must be known to be held: a summary may lack its last blocks.
const nearlyAll = 85

// awaitHolder waits until the front end of a replica knows that another one holds nearly all of the prompt of these ids,
// or until it has had time enough to: on a busy host, the prompt may have been computed elsewhere.
func (r *fleetHarness) awaitHolder(front, holder string, ids []uint32) {
	r.T.Helper()
	steps := prefix.AppendSteps(nil, prefix.Root(llm, "", ""), ids)
	polls := 0
	r.WaitFor(fmt.Sprintf("%s knows that %s holds a prompt", front, holder), func() bool {
		polls++
		at, held := r.daemons[front].Market().LongestPrefix(steps)
		return polls > 2000 || at.Replica == policies.ReplicaID(holder) && held >= policies.Tokens(len(ids))*nearlyAll/100
	})
}

// waitUntilPlacing waits until every front end knows that its engine is ready, and starts requests there.
func (r *fleetHarness) waitUntilPlacing() {
	r.T.Helper()
	for id, d := range r.daemons {
		r.WaitFor(id+" knows that its engine is ready", func() bool {
			return d.Market().Place(policies.Request{ID: "probe", Model: llm, Input: 20, MaxOutput: 4}, nil) == (policies.Target{})
		})
	}
}

// song returns a prompt of about that many tokens; prompts of different numbers differ from the first token on.
func song(number, tokens int) string {
	const line = "over the hill and far away "
	return fmt.Sprint(number, " ", strings.Repeat(line, tokens/6+1))
}

// computePrompts gives engines a cost for prompts, so that it matters where one is held.
func computePrompts(f *config.Fleet) { f.Models[0].Profile = "testdata/prefilling.json" }

// TestConversationStays sends the turns of conversations to different front ends. Each lands on the replica that
// holds the turn before, found by its text alone, whether the front end has seen that text or asks its engine for
// its tokens.
func TestConversationStays(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 3, front: func(_ string, c *frontend.Config) { c.TokenizeTimeout = patience }, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationLive}, 4
			computePrompts(f)
		}})
		address := func(id string) string { return r.replica(id).Address }
		r.waitUntilPlacing()
		// On a busy host a load may be too old when a request arrives, and the request stays: of several
		// conversations of each kind, two turns land.
		const conversations, tokens = 24, 4096
		var landed [2]int
		for i := 0; i < conversations && min(landed[0], landed[1]) < 2; i++ {
			holder, other, third := fmt.Sprint("r", i%3), fmt.Sprint("r", (i+1)%3), fmt.Sprint("r", (i+2)%3)
			path, text := "/v1/completions", song(i+1, tokens)
			var messages []any
			body := func(more string) map[string]any {
				if path == "/v1/completions" {
					text += more
					return map[string]any{"prompt": text, "max_tokens": 100}
				}
				messages = append(messages, map[string]any{"role": "user", "content": text + more})
				return map[string]any{"messages": messages, "max_tokens": 100}
			}
			if i%2 == 1 {
				path = "/v1/chat/completions"
			}
			first := r.ask(address(holder), path, body(""))
			if first.cached > 100 {
				t.Errorf("a new prompt has %d cached tokens", first.cached)
			}
			next := func(front string, before turn) turn {
				t.Helper()
				if path == "/v1/completions" {
					text += before.text
				} else {
					messages, text = append(messages, map[string]any{"role": "assistant", "content": before.text}), ""
				}
				r.awaitHolder(front, holder, before.prompt)
				forwards := r.daemons[front].Market().Status().Forwards
				got := r.ask(address(front), path, body(" and then? "+song(i, 100)))
				if r.daemons[front].Market().Status().Forwards > forwards && got.cached >= len(before.prompt)*nearlyAll/100 {
					landed[i%2]++
				}
				return got
			}
			second := next(other, first)
			next(third, second)
		}
		if min(landed[0], landed[1]) < 2 {
			t.Errorf("of %d conversations, %d turns of completions and %d of chats landed on their holder", conversations, landed[0], landed[1])
		}
	})
}

// TestConversationsThroughProxies sends the turns of conversations through a proxy, which knows nothing of prompts. A turn
// that it sends to another replica than the one that holds the turn before is forwarded there, once.
func TestConversationsThroughProxies(t *testing.T) {
	planes(t, onBoth, func(t *testing.T, envoy string) {
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 3, front: func(_ string, c *frontend.Config) { c.TokenizeTimeout = patience }, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{Mode: config.MigrationPlace}, 4 // no KV is copied
			computePrompts(f)
		}})
		r.waitUntilPlacing()
		proxy := strings.TrimPrefix(r.DataPlane, "http://")
		forwards := func() (all uint64) {
			for _, d := range r.daemons {
				all += d.Market().Status().Forwards
			}
			return all
		}
		holderOf := func(ids []uint32) (holder string) {
			r.WaitFor("a replica holds the prompt", func() bool {
				for id, f := range r.fronts {
					if f.HeldPrefixes().Match(prefix.Root(llm, "", ""), ids) >= policies.Tokens(len(ids))*nearlyAll/100 {
						holder = id
					}
				}
				return holder != ""
			})
			return holder
		}
		// As in TestConversationStays, on a busy host a request may stay where the proxy has sent it.
		const conversations, tokens, enough = 24, 4096, 3
		landed, hits := 0, 0
		for i := 0; i < conversations && landed < enough; i++ {
			text := song(100+i, tokens)
			first := r.ask(proxy, "/v1/completions", map[string]any{"prompt": text, "max_tokens": 20})
			holder := holderOf(first.prompt)
			for id := range r.fronts {
				if id != holder {
					r.awaitHolder(id, holder, first.prompt)
				}
			}
			arrived, forwarded := r.counts(), forwards()
			next := r.ask(proxy, "/v1/completions", map[string]any{"prompt": text + first.text + " and then?", "max_tokens": 20})
			hops, hit := forwards()-forwarded, next.cached >= len(first.prompt)*nearlyAll/100
			if hops > 1 {
				t.Errorf("a request was forwarded %d times", hops)
			}
			if hit {
				hits++
			}
			if hit && hops == 1 && r.countsSince(arrived)[holder] == 0 {
				landed++
			}
		}
		if landed < enough {
			t.Errorf("of %d conversations, the next turn of %d was forwarded to the replica that holds it, and %d found it", conversations, landed, hits)
		}
	})
}
