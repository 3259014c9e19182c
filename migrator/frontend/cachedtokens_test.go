package frontend

import (
	"fmt"
	"strings"
	"testing"
)

// TestCachedTokensEstimated sends twelve prompts that begin alike. The prefill of an engine that reports
// no cached tokens is counted about once, and the server says that it is an estimate; that of one that
// reports them is as it reports.
func TestCachedTokensEstimated(t *testing.T) {
	for _, hides := range []bool{true, false} {
		runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
			e.hidesCached.Store(hides)
			const prompts, shared = 12, 4096
			for i := range prompts {
				body := fmt.Sprintf(`{"max_tokens":1,"stream":true,"prompt":[%s%d]}`, strings.Repeat("7,", shared), i+1)
				if _, got := post(t, f.client, f.url, "/v1/completions", body); !strings.HasSuffix(got, "[DONE]\n\n") {
					t.Fatal(got)
				}
			}
			s := f.Status()
			prefill, arrivals := 0.0, 0.0
			for i := range s.Flow.Prefill {
				prefill, arrivals = prefill+s.Flow.Prefill[i], arrivals+s.Flow.Arrivals[i]
			}
			perPrompt, want := prefill/arrivals, 1.0 // one token beyond the blocks of 16
			if hides {
				want = (shared + prompts) / prompts
			}
			if perPrompt < want*0.9 || perPrompt > want*1.1 || s.CachedEstimated != hides {
				t.Errorf("cached tokens hidden: %v: %.1f tokens of prefill per prompt, want %.1f; estimated: %v", hides, perPrompt, want, s.CachedEstimated)
			}
		})
	}
}

// TestCachedTokensOfNewEngine restarts the engine: what the one before had cached is
// forgotten, and whether it reported cached tokens says nothing about the new one.
func TestCachedTokensOfNewEngine(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		ids := make([]uint32, 256)
		send := func(hides bool) {
			e.hidesCached.Store(hides)
			body := fmt.Sprintf(`{"model":"m","max_tokens":1,"stream":true,"prompt":[%s0]}`, strings.Repeat("0,", len(ids)-1))
			if _, got := post(t, f.client, f.url, "/v1/completions", body); !strings.HasSuffix(got, "[DONE]\n\n") {
				t.Fatal(got)
			}
		}
		restart := func() {
			e.unhealthy.Store(true)
			f.waitForReady(t, false)
			e.unhealthy.Store(false)
			f.waitForReady(t, true)
		}
		send(true)
		send(true)
		if known := f.prefixes.Match(f.promptRoot("m", ""), ids); known == 0 || !f.Status().CachedEstimated {
			t.Fatalf("%d tokens of a prompt are known that was sent twice", known)
		}
		restart()
		if known := f.prefixes.Match(f.promptRoot("m", ""), ids); known != 0 || f.Status().CachedEstimated {
			t.Errorf("a new engine has %d tokens cached", known)
		}
		send(false)
		send(false)
		if !f.reportsCached.Load() {
			t.Fatal("an engine that reports cached tokens is not known to")
		}
		restart()
		send(true)
		if send(true); !f.Status().CachedEstimated {
			t.Error("a new engine that reports nothing is taken for the one before, which did")
		}
	})
}
