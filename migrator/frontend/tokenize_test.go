package frontend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// tokenizing is a fleet whose r0 knows that its peers hold prompts, and what r0's engine answers when it is asked for the
// tokens of one.
type tokenizing struct {
	*fleet
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

func newTokenizing(t *testing.T, n int, setups ...setup) *tokenizing {
	z := new(tokenizing)
	z.set(answerTokens)
	z.fleet = newFleet(t, n, append([]setup{func(f *fleet, c *Config) {
		c.Model, c.HealthInterval = "m", time.Second // minutes pass in these tests
		if c.Replica == "r0" {
			places(f, c)
			f.placers[0].holders.Store(true)
			f.engines[0].pass(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/tokenize" {
					http.NotFound(w, r)
					return
				}
				z.asked.Add(1)
				(*z.answer.Load())(w, r)
			})
		}
	}}, setups...)...)
	return z
}

// runTokenizing runs a test of a fleet that knows holders in virtual time.
func runTokenizing(t *testing.T, n int, test func(t *testing.T, z *tokenizing), setups ...setup) {
	synctest.Test(t, func(t *testing.T) { test(t, newTokenizing(t, n, setups...)) })
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
	z.placers[0].steps.Store(nil)
	defer within(z.t, most)()
	z.fleet.ask("/v1/completions", body)
	steps := z.placers[0].steps.Load()
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

// TestKnownLength checks that a prompt whose text is known for the most part counts with the length
// that follows from it, for the placer and at the peer that computes it, whatever the estimate by
// which the request was routed says.
func TestKnownLength(t *testing.T) {
	runTokenizing(t, 2, func(t *testing.T, z *tokenizing) {
		text := z.nextBody(tokenizedPrompt)
		z.ask(text, 0)
		// A quarter more text, and as many tokens: one for each byte, where an estimate expects one for several.
		text = strings.TrimSuffix(text, `"}`) + strings.Repeat("more ", tokenizedPrompt/20) + `"}`
		exact := policies.Tokens(len(text) - strings.Index(text, `"prompt":`) - len(`"prompt":}`))
		near := func(n policies.Tokens) bool { return exact*95/100 < n && n < exact*105/100 }
		z.ask(text, 0)
		if n := z.placers[0].last.Load().Input; !near(n) {
			t.Errorf("the placer is asked for %d tokens, want about %d", n, exact)
		}
		for i, at := range z.servers {
			z.placers[0].target.Store(nil)
			if i > 0 {
				z.placers[0].sendTo(z.target(i))
			}
			z.engines[i].blockAt(0)
			z.abandon(text, func() {
				waitFor(t, func() bool { return at.Status().Load.Promised > 0 })
				if n := at.Status().Load.Promised; !near(n) {
					t.Errorf("r%d counts %d tokens, want about %d", i, n, exact)
				}
			})
		}
	})
}

// TestTokenize checks for which prompts the engine is asked, with what, and what the placer gets.
func TestTokenize(t *testing.T) {
	runTokenizing(t, 1, func(t *testing.T, z *tokenizing) {
		var got atomic.Pointer[string]
		z.set(func(w http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			body := string(raw)
			got.Store(&body)
			r.Body = io.NopCloser(strings.NewReader(body))
			answerTokens(w, r)
		})
		body := z.nextBody(tokenizedPrompt)
		prompt := body[strings.Index(body, `"prompt":`)+len(`"prompt":`) : len(body)-1]
		want := prefix.AppendSteps(nil, prefix.Root("m", "", ""), idsOf(json.RawMessage(prompt)))
		if steps := z.ask(body, 0); !slices.Equal(steps, want) {
			t.Errorf("the placer gets %d steps: %v, want %d: %v", len(steps), steps, len(want), want)
		}
		if c, want := got.Load(), `{"model":"m","prompt":`+prompt+`}`; *c != want {
			t.Errorf("the engine was asked for %s, want %s", *c, want)
		}
		z.expect("a long prompt", 1, 1, 0, 0)
		if steps := z.ask(body, 0); len(steps) == 0 {
			t.Error("the text is unknown although its tokens were learnt")
		}
		z.expect("the same once more", 1, 1, 0, 0)
		z.ask(z.nextBody(1000), 0)
		z.expect("a short prompt", 1, 1, 0, 0)
		z.ask(z.nextBody(maxTokenizedText), 0)
		z.expect("a prompt that takes too long", 1, 1, 0, 1)
		z.placers[0].holders.Store(false)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("no peer holds prompts", 1, 1, 0, 1)
	})
}

// TestTokenizeFails checks that a request is answered, as soon as tokenizeTimeout allows, whatever the engine does
// when it is asked for the tokens of a prompt, and that it is not asked for a while after several failures in a row.
func TestTokenizeFails(t *testing.T) {
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }
	}
	for name, test := range map[string]struct {
		answer  http.HandlerFunc
		slow    bool // it costs the request tokenizeTimeout
		refused bool // which says nothing about other prompts
		missing bool // the engine has no such endpoint
	}{
		"does not exist":     {answer: status(404, "no"), missing: true},
		"internal error":     {answer: status(500, "no")},
		"refuses the prompt": {answer: status(400, "too long"), refused: true},
		"no tokens":          {answer: status(200, `{"count":3}`)},
		"ids out of range":   {answer: status(200, `{"tokens":[1,-2,4294967296]}`)},
		"too many tokens":    {answer: status(200, `{"tokens":[`+strings.Repeat("1234567,", maxTokenized/8)+`1]}`)},
		"connection cut":     {answer: breaks},
		"cut in the answer": {answer: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"tokens":[1,2`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
		"hangs": {slow: true, answer: silent},
		"never ends": {slow: true, answer: func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			io.WriteString(w, `{"tokens":[1`)
			for r.Context().Err() == nil {
				io.WriteString(w, ",1")
				w.(http.Flusher).Flush()
				time.Sleep(time.Millisecond)
			}
		}},
	} {
		runInBubble(t, name, func(t *testing.T) {
			z, asked := newTokenizing(t, 1), int64(tokenizeFailures)
			z.set(test.answer)
			most := time.Duration(0)
			if test.slow {
				most = tokenizeTimeout
			}
			for range tokenizeFailures {
				if steps := z.ask(z.nextBody(tokenizedPrompt), most); len(steps) > 0 {
					t.Errorf("the placer gets %d steps", len(steps))
				}
			}
			z.expect("failed", tokenizeFailures, 0, tokenizeFailures, 0)
			z.set(answerTokens)
			if test.refused {
				z.ask(z.nextBody(tokenizedPrompt), 0)
				z.expect("another prompt", tokenizeFailures+1, 1, tokenizeFailures, 0)
				return
			}
			if test.slow { // which may be because they are so long
				if asked++; len(z.ask(z.nextBody(tokenizedPrompt/2), 0)) == 0 {
					t.Error("the placer gets no steps of a shorter prompt")
				}
			}
			answered := uint64(asked - tokenizeFailures)
			pause := tokenizePause
			if test.missing {
				pause = tokenizeMissing
			}
			time.Sleep(pause - time.Second)
			z.ask(z.nextBody(tokenizedPrompt), 0)
			z.expect("within the pause", asked, answered, tokenizeFailures, 1)
			time.Sleep(time.Second)
			if steps := z.ask(z.nextBody(tokenizedPrompt), 0); len(steps) == 0 {
				t.Error("the placer gets no steps after the pause")
			}
			z.expect("after the pause", asked+1, answered+1, tokenizeFailures, 1)
		})
	}
}

// TestClassifyStatus checks what an engine's status says: that it has no such endpoint, that the prompt is not for it, or
// that it failed.
func TestClassifyStatus(t *testing.T) {
	for want, all := range map[error][]int{errNoTokenize: {404, 405, 501}, errPromptRefused: {400, 401, 403, 413, 422}, errTokenizeFailed: {408, 429, 500, 502, 503}} {
		for _, status := range all {
			if got := classifyStatus(status); got != want {
				t.Errorf("%d: %v, want %v", status, got, want)
			}
		}
	}
}

// TestTokenizePauses checks after which results of calls the engine is asked for which prompts.
func TestTokenizePauses(t *testing.T) {
	begin := time.Unix(1000, 0)
	slow, failed := fmt.Errorf("POST: %w", context.DeadlineExceeded), errors.New("failed")
	type call struct {
		size int
		err  error
	}
	for name, test := range map[string]struct {
		calls []call
		least int // the shortest prompt that is not asked for; -1: all are
		pause time.Duration
	}{
		"two failures":                {calls: []call{{9, failed}, {9, failed}}, least: -1},
		"three failures":              {calls: []call{{9, failed}, {9, failed}, {9, failed}}, pause: tokenizePause},
		"an answer between":           {calls: []call{{9, failed}, {9, failed}, {9, nil}, {9, failed}}, least: -1},
		"a refusal between":           {calls: []call{{9, failed}, {9, failed}, {9, errPromptRefused}, {9, failed}}, least: -1},
		"the longest of those":        {calls: []call{{8, slow}, {9, slow}, {7, slow}}, least: 9, pause: tokenizePause},
		"a short one after long ones": {calls: []call{{9, slow}, {9, slow}, {9, slow}, {5, slow}, {5, slow}}, least: 9, pause: tokenizePause},
		"short ones after long ones":  {calls: []call{{9, slow}, {9, slow}, {9, slow}, {5, slow}, {5, slow}, {5, slow}}, least: 5, pause: tokenizePause},
		"an answer in the pause":      {calls: []call{{9, slow}, {9, slow}, {9, slow}, {5, nil}, {5, slow}, {5, slow}}, least: 9, pause: tokenizePause},
		"an answer between timeouts":  {calls: []call{{9, slow}, {9, slow}, {9, nil}, {9, slow}}, least: -1},
		"long ones after short ones":  {calls: []call{{5, slow}, {5, slow}, {5, slow}, {9, slow}, {9, slow}, {9, slow}}, least: 5, pause: tokenizePause},
		"a failure after timeouts":    {calls: []call{{9, slow}, {9, slow}, {9, slow}, {5, errNoTokenize}}, least: 9, pause: tokenizePause},
		"failures between timeouts":   {calls: []call{{9, slow}, {7, failed}, {8, slow}, {7, failed}}, least: -1},
		"no endpoint":                 {calls: []call{{9, failed}, {9, failed}, {9, errNoTokenize}}, pause: tokenizeMissing},
		"no endpoint, and then again": {calls: []call{{9, failed}, {9, failed}, {9, errNoTokenize}, {9, failed}}, pause: tokenizeMissing},
	} {
		var p tokenizePauses
		for _, c := range test.calls {
			p.record(c.size, c.err, begin)
		}
		for size := range 12 {
			for _, now := range []time.Time{begin, begin.Add(test.pause - 1), begin.Add(test.pause)} {
				if want := test.least < 0 || size < test.least || now.Sub(begin) >= test.pause; p.allows(size, now) != want {
					t.Errorf("%s: a prompt of %d bytes after %v: %v, want %v", name, size, now.Sub(begin), !want, want)
				}
			}
		}
	}
}

// TestTokenizeMissing checks that an engine without the endpoint is logged once, and that another engine is asked.
func TestTokenizeMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		z := newTokenizing(t, 1, configured(func(c *Config) { c.Logger = log.Logger() }))
		z.set(http.NotFound)
		for range 3 {
			for range tokenizeFailures {
				z.ask(z.nextBody(tokenizedPrompt), 0)
			}
			time.Sleep(tokenizeMissing)
		}
		if n := log.Count(`msg="engine does not tokenize`); n != 1 {
			t.Errorf("logged %d times:\n%s", n, &log)
		}
		z.ask(z.nextBody(tokenizedPrompt), 0)
		asked := z.asked.Load()
		z.ask(z.nextBody(tokenizedPrompt), 0)
		if z.asked.Load() != asked {
			t.Error("asked although the endpoint is missing")
		}
		z.forgetCached()
		z.set(answerTokens)
		if steps := z.ask(z.nextBody(tokenizedPrompt), 0); len(steps) == 0 {
			t.Error("the next engine is not asked")
		}
	})
}

// TestTokenizeTemplate checks that a client's chat template reaches the engine with its request only.
func TestTokenizeTemplate(t *testing.T) {
	runTokenizing(t, 1, func(t *testing.T, z *tokenizing) {
		chat := func(fields string) {
			z.n++
			body := fmt.Sprintf(`{"model":"m","max_tokens":3,"messages":[{"role":"user","content":"%d %s"}]%s}`, z.n, strings.Repeat("word ", tokenizedPrompt/5), fields)
			z.post("/v1/chat/completions", body)
		}
		chat(`,"chat_template":"{% for a in range(1000000000) %}{% endfor %}"`)
		chat(`,"chat_template_kwargs":{"chat_template":"{{ messages }}"}`)
		z.expect("a template of the client's", 0, 0, 0, 0)
		chat(`,"chat_template_kwargs":{"enable_thinking":false}`)
		if z.asked.Load() != 1 {
			t.Error("the engine was not asked for a prompt without a template")
		}
	})
}

// TestTokenizeBusy checks that no more than maxTokenizing prompts are asked for at a time, and that others do not
// wait for them.
func TestTokenizeBusy(t *testing.T) {
	runTokenizing(t, 1, func(t *testing.T, z *tokenizing) {
		proceed := make(chan struct{})
		z.set(func(w http.ResponseWriter, r *http.Request) {
			<-proceed
			answerTokens(w, r)
		})
		var answers []chan string
		for range maxTokenizing {
			answers = append(answers, z.start(z.nextBody(tokenizedPrompt)))
		}
		synctest.Wait()
		z.expect("all slots are in use", maxTokenizing, 0, 0, 0)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("one more", maxTokenizing, 0, 0, 1)
		close(proceed)
		for _, answer := range answers {
			if got := <-answer; !strings.HasPrefix(got, "200 ") {
				t.Error(got)
			}
		}
		z.expect("all are answered", maxTokenizing, maxTokenizing, 0, 1)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("the slots are free", maxTokenizing+1, maxTokenizing+1, 0, 1)
	})
}

// TestTokenizeClientLeaves checks that a client that leaves while the engine is asked says nothing about the engine.
func TestTokenizeClientLeaves(t *testing.T) {
	runTokenizing(t, 1, func(t *testing.T, z *tokenizing) {
		left := make(chan struct{})
		z.set(func(w http.ResponseWriter, r *http.Request) {
			silent(w, r)
			close(left)
		})
		z.abandon(z.nextBody(tokenizedPrompt), func() { time.Sleep(tokenizeTimeout / 2) })
		<-left
		synctest.Wait()
		z.expect("the client has left", 1, 0, 0, 0)
		z.set(answerTokens)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("the next request", 2, 1, 0, 0)
	})
}
