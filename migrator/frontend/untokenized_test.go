package frontend

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// TestUntokenizedPrompts checks which prompts are reported as such that front ends cannot get the tokens of: texts
// while the engine is not asked, short ones included, and all texts where nothing places requests.
func TestUntokenizedPrompts(t *testing.T) {
	runTokenizing(t, 1, func(t *testing.T, z *tokenizing) {
		var want prefix.Depths
		send := func(body string, untokenized bool) {
			t.Helper()
			z.ask(body, 0)
			observe(&want, body, untokenized)
			if got := z.tracker.State().PrefixDepths; got != want {
				t.Errorf("a prompt that is untokenized, %v, was not counted so: %.60s", untokenized, body)
			}
		}
		send(z.nextBody(tokenizedPrompt), false)
		send(z.nextBody(1000), false) // it is not asked for, but could be
		z.set(http.NotFound)
		for range tokenizeFailures {
			send(z.nextBody(tokenizedPrompt), false)
		}
		send(z.nextBody(tokenizedPrompt), true)
		send(z.nextBody(1000), true)
		send(`{"model":"m","max_tokens":3,"prompt":[`+strings.Repeat("17,", 500)+`1]}`, false)
		time.Sleep(tokenizeMissing)
		send(z.nextBody(tokenizedPrompt), false) // it is asked again

		short := newTokenizing(t, 1)
		short.set(http.NotFound)
		want = prefix.Depths{}
		for i := range tokenizeFailures + 1 {
			body := short.nextBody(1000)
			short.ask(body, 0)
			if observe(&want, body, i == tokenizeFailures); short.tracker.State().PrefixDepths != want {
				t.Errorf("short prompt %d of an engine that has no %s was not counted so", i, "/tokenize")
			}
		}
		short.expect("short prompts without an endpoint", tokenizeFailures, 0, tokenizeFailures, 1)

		alone := startServer(t, z.engines[0].URL, func(c *Config) { c.Model = "m" })
		body := z.nextBody(1000)
		alone.post("/v1/completions", body)
		want = prefix.Depths{}
		if observe(&want, body, true); alone.tracker.State().PrefixDepths != want {
			t.Error("a prompt that nothing places is not counted as untokenized")
		}
	})
}

// TestForwardedPromptCountsOnce checks that a prompt that is placed at a peer counts where it has arrived only: it
// would look like two with one beginning.
func TestForwardedPromptCountsOnce(t *testing.T) {
	runTokenizing(t, 2, func(t *testing.T, z *tokenizing) {
		z.placers[0].sendTo(z.target(1))
		z.ask(z.nextBody(1000), 0)
		if z.engines[1].calls.Load() != 2 { // with that of ask
			t.Fatal("the request was not forwarded")
		}
		own, at := z.tracker.State().PrefixDepths, z.servers[1].tracker.State().PrefixDepths
		if own.Prompts() != 1 || at.Prompts() != 0 {
			t.Errorf("%d prompts count where it has arrived, %d where it runs", own.Prompts(), at.Prompts())
		}
	})
}

// observe counts the prompt of a body.
func observe(d *prefix.Depths, body string, untokenized bool) {
	var s length.Scanner
	s.HashPrefix(length.MaxPrefixDepth)
	s.Write([]byte(body))
	if untokenized {
		d.ObserveUntokenized(s.PrefixDigests())
	} else {
		d.Observe(s.PrefixDigests())
	}
}
