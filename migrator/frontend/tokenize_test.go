package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

func newTokenizing(t *testing.T) *tokenizing {
	z := &tokenizing{t: t, engine: newEngine(t), placer: new(placer)}
	z.placer.holders.Store(true)
	z.set(answerTokens)
	rest := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != tokenizePath {
			http.NotFound(w, r)
			return
		}
		z.asked.Add(1)
		(*z.answer.Load())(w, r)
	}
	z.engine.passthrough.Store(&rest)
	z.testServer = startServer(t, z.engine.URL, func(c *Config) { c.Placer, c.Model = z.placer, "m" })
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

// TestTokenize checks for which prompts the engine is asked, with what, and what the placer gets.
func TestTokenize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newTokenizing(t)
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
		z.placer.holders.Store(false)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("no peer holds prompts", 1, 1, 0, 1)
	})
}

// TestTokenizeFails checks that a request is answered, as soon as tokenizeTimeout allows, whatever the engine does
// when it is asked for the tokens of a prompt, and that it is not asked again for a while.
func TestTokenizeFails(t *testing.T) {
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, body, code) }
	}
	for name, test := range map[string]struct {
		answer  http.HandlerFunc
		slow    bool // it costs the request tokenizeTimeout
		refused bool // which says nothing about other prompts
	}{
		"does not exist":       {answer: status(404, "no")},
		"internal error":       {answer: status(500, "no")},
		"busy":                 {answer: status(503, "no")},
		"refuses the prompt":   {answer: status(400, "too long"), refused: true},
		"cannot use the field": {answer: status(422, "no"), refused: true},
		"no JSON":              {answer: status(200, "tokens")},
		"no tokens":            {answer: status(200, `{"count":3}`)},
		"text for tokens":      {answer: status(200, `{"tokens":["a"]}`)},
		"ids out of range":     {answer: status(200, `{"tokens":[1,-2,4294967296]}`)},
		"too many tokens":      {answer: status(200, `{"tokens":[`+strings.Repeat("1234567,", maxTokenized/8)+`1]}`)},
		"connection cut":       {answer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		"cut in the answer": {answer: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"tokens":[1,2`)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}},
		"hangs": {slow: true, answer: func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}},
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
			z := newTokenizing(t)
			z.set(test.answer)
			most := time.Duration(0)
			if test.slow {
				most = tokenizeTimeout
			}
			if steps := z.ask(z.nextBody(tokenizedPrompt), most); len(steps) > 0 {
				t.Errorf("the placer gets %d steps", len(steps))
			}
			z.expect("failed", 1, 0, 1, 0)
			z.set(answerTokens)
			if test.refused {
				z.ask(z.nextBody(tokenizedPrompt), 0)
				z.expect("another prompt", 2, 1, 1, 0)
				return
			}
			z.ask(z.nextBody(tokenizedPrompt), 0)
			z.expect("within the pause", 1, 0, 1, 1)
			time.Sleep(tokenizePause)
			if steps := z.ask(z.nextBody(tokenizedPrompt), 0); len(steps) == 0 {
				t.Error("the placer gets no steps after the pause")
			}
			z.expect("after the pause", 2, 1, 1, 1)
		})
	}
}

// TestTokenizeBusy checks that no more than maxTokenizing prompts are asked for at a time, and that others do not
// wait for them.
func TestTokenizeBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newTokenizing(t)
		proceed := make(chan struct{})
		z.set(func(w http.ResponseWriter, r *http.Request) {
			<-proceed
			answerTokens(w, r)
		})
		statuses := make(chan int)
		for range maxTokenizing {
			body := z.nextBody(tokenizedPrompt)
			go func() {
				resp, err := z.client.Post("http://"+z.url+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					statuses <- 0
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				statuses <- resp.StatusCode
			}()
		}
		synctest.Wait()
		z.expect("all slots are in use", maxTokenizing, 0, 0, 0)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("one more", maxTokenizing, 0, 0, 1)
		close(proceed)
		for range maxTokenizing {
			if s := <-statuses; s != http.StatusOK {
				t.Errorf("status %d", s)
			}
		}
		z.expect("all are answered", maxTokenizing, maxTokenizing, 0, 1)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("the slots are free", maxTokenizing+1, maxTokenizing+1, 0, 1)
	})
}

// TestTokenizeClientLeaves checks that a client that leaves while the engine is asked says nothing about the engine.
func TestTokenizeClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		z := newTokenizing(t)
		left := make(chan struct{})
		z.set(func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			close(left)
		})
		ctx, leave := context.WithTimeout(t.Context(), tokenizeTimeout/2)
		defer leave()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+z.url+"/v1/completions", strings.NewReader(z.nextBody(tokenizedPrompt)))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := z.client.Do(req); err == nil {
			resp.Body.Close()
			t.Errorf("%s", resp.Status)
		}
		<-left
		synctest.Wait()
		z.expect("the client has left", 1, 0, 0, 0)
		z.set(answerTokens)
		z.ask(z.nextBody(tokenizedPrompt), 0)
		z.expect("the next request", 2, 1, 0, 0)
	})
}
