package frontend

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/policies"
)

// TestSequencesAreAdmitted sends requests that make the engine generate several sequences: each counts as all of
// them, so that a busy replica admits as many sequences as of requests for one.
func TestSequencesAreAdmitted(t *testing.T) {
	const prompt = "once upon a time there was a replica"
	list := strings.Repeat(`"`+prompt+`",`, 3) + `"` + prompt + `"`
	for name, c := range map[string]struct {
		path, body string
		tokens     policies.Tokens // that one request counts as, about
	}{
		"n":                 {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","n":4,"max_tokens":90,"stream":true}`, 370},
		"a later n":         {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","n":1,"n":4,"max_tokens":90,"stream":true}`, 370},
		"best_of":           {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","best_of":4,"max_tokens":90,"stream":true}`, 370},
		"beam search":       {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","use_beam_search":true,"n":4,"max_tokens":90,"stream":true}`, 370},
		"prompts":           {"/v1/completions", `{"model":"m","prompt":[` + list + `],"max_tokens":90,"stream":true}`, 396},
		"prompts, each n":   {"/v1/completions", `{"model":"m","prompt":["` + prompt + `","` + prompt + `"],"n":2,"max_tokens":90,"stream":true}`, 378},
		"prompts as ids":    {"/v1/completions", `{"model":"m","prompt":[` + strings.Repeat("[1,2,3,4,5,6,7,8,9],", 3) + `[1,2,3,4,5,6,7,8,9]],"max_tokens":90,"stream":true}`, 396},
		"n of chats":        {"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + prompt + `"}],"n":4,"max_tokens":90,"stream":true}`, 375},
		"responses":         {"/v1/responses", `{"model":"m","input":"` + prompt + `","max_output_tokens":100}`, 109},
		"lists to embed":    {"/v1/embeddings", `{"model":"m","input":["` + strings.Repeat("x", 1600) + `","` + strings.Repeat("x", 1600) + `"]}`, 802},
		"documents to rank": {"/v1/rerank", `{"model":"m","query":"` + strings.Repeat("x", 400) + `","documents":["a","b","c","d"]}`, 418},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEngine(t)
				proceed := e.blockAt(1)
				wait := func(http.ResponseWriter, *http.Request) { <-proceed }
				e.passthrough.Store(&wait)
				srv := startServer(t, e.URL, busyEngine)
				admitted := 0
				for ; admitted < 20; admitted++ {
					answer, refused := srv.call("POST", c.path, c.body), false
					synctest.Wait()
					select {
					case got := <-answer:
						refused = strings.HasPrefix(got, "429 ")
					default: // the engine has it
					}
					if refused {
						break
					}
				}
				// The replica admits about 1600 tokens.
				if admitted == 0 || policies.Tokens(admitted) > 3300/c.tokens {
					t.Errorf("%d requests of %d tokens are admitted", admitted, c.tokens)
				}
				srv.admission.mu.Lock()
				each := srv.admission.ledger.Work().Demand / policies.Tokens(max(admitted, 1))
				if each < c.tokens*9/10 || each > c.tokens*11/10 {
					t.Errorf("a request counts as %d tokens, want %d", each, c.tokens)
				}
				srv.admission.mu.Unlock()
				close(proceed)
				waitFor(t, func() bool { return srv.Status().Load.Running+srv.Status().Load.Waiting == 0 })
			})
		})
	}
}
