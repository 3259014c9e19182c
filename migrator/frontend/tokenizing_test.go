package frontend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/prefix"
)

// tokenizing is a server whose peers hold prompts, and what its engine answers when it is asked for the tokens of
// one.
type tokenizing struct {
	*testServer
	t      *testing.T
	engine *engine
	placer *placer
	asked  atomic.Int64
	answer atomic.Pointer[http.HandlerFunc]
	n      int // of prompts
}

// idsOf returns the tokens of a prompt, which are those that the engine computes: one for each character of its JSON.
func idsOf(prompt json.RawMessage) (ids []uint32) {
	for _, c := range string(prompt) {
		ids = append(ids, uint32(c))
	}
	return ids
}

func answerTokens(w http.ResponseWriter, r *http.Request) {
	var req struct{ Prompt json.RawMessage }
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ids := idsOf(req.Prompt)
	fmt.Fprintf(w, `{"count":%d,"max_model_len":65536,"tokens":%s}`, len(ids), formatIDs(ids, true))
}

func newTokenizing(t *testing.T, change ...func(*Config)) *tokenizing {
	z := &tokenizing{t: t, engine: newEngine(t), placer: new(placer)}
	z.placer.holders.Store(true)
	z.set(answerTokens)
	rest := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tokenize" {
			http.NotFound(w, r)
			return
		}
		z.asked.Add(1)
		(*z.answer.Load())(w, r)
	}
	z.engine.passthrough.Store(&rest)
	z.testServer = startServer(t, z.engine.URL, func(c *Config) {
		c.Placer, c.Model, c.HealthInterval = z.placer, "m", time.Second // minutes pass in these tests
		for _, f := range change {
			f(c)
		}
	})
	return z
}

func (z *tokenizing) set(answer http.HandlerFunc) { z.answer.Store(&answer) }

// nextBody returns a completion of a prompt of so many bytes that begins as no other one.
func (z *tokenizing) nextBody(size int) string {
	z.n++
	return fmt.Sprintf(`{"model":"m","max_tokens":3,"prompt":"%d %s"}`, z.n, strings.Repeat("word ", size/5))
}

// tokenizedPrompt is the size of a prompt in bytes that is asked for.
const tokenizedPrompt = 20_000

// ask sends a request, whose answer must be the engine's and begin within a time, and returns the steps of its prompt
// that its placer gets.
func (z *tokenizing) ask(body string, most time.Duration) []prefix.Step {
	z.t.Helper()
	z.placer.steps.Store(nil)
	begun := time.Now()
	resp, got := post(z.t, z.client, z.url, "/v1/completions", body)
	if took := time.Since(begun); took > most {
		z.t.Errorf("the answer took %v, want %v at most", took, most)
	}
	_, want := post(z.t, z.client, strings.TrimPrefix(z.engine.URL, "http://"), "/v1/completions", body)
	if resp.StatusCode != http.StatusOK || withoutIDs(got) != withoutIDs(want) {
		z.t.Errorf("%s %s\nwant %s", resp.Status, got, want)
	}
	steps := z.placer.steps.Load()
	if steps == nil {
		z.t.Fatal("the placer was not asked")
	}
	return *steps
}

// expect checks the counts of prompts.
func (z *tokenizing) expect(what string, asked int64, answered, failed, skipped uint64) {
	z.t.Helper()
	p := z.PrefixStatus()
	if n := z.asked.Load(); n != asked || p.Tokenized != answered || p.TokenizeFailed != failed || p.TokenizeSkipped != skipped {
		z.t.Errorf("%s: the engine was asked %d times; %d prompts answered, %d failed, %d skipped; want %d, %d, %d, %d",
			what, n, p.Tokenized, p.TokenizeFailed, p.TokenizeSkipped, asked, answered, failed, skipped)
	}
}
