package stock

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/handofftest"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// Ways that a move can take.
const (
	handedOver = "handoff"  // the target's engine was to fetch the KV
	reprompted = "reprompt" // the target computed it
	stayed     = "stays"    // the stream stays at the holder
	clientLeft = "-"
)

// faultFleet is two front ends with default timeouts, and proxies between them and real engines. A stream moves from
// the holder to the target.
type faultFleet struct {
	*handofftest.Pair
	t              *testing.T
	engines        []*engine
	proxies        [2]*handofftest.Proxy
	holder, target *engine
	stream         handofftest.Stream
	background     sync.WaitGroup
}

// newFaultFleet runs front ends for engines until the test ends, with a stream from an engine to the other one.
func newFaultFleet(t *testing.T, engines []*engine, seed uint64, holder int) *faultFleet {
	f := &faultFleet{t: t, engines: engines, holder: engines[holder], target: engines[1-holder]}
	f.Pair, f.proxies = handofftest.NewProxied(t, model, [2]string{engines[0].URL, engines[1].URL}, func(c *frontend.Config) {
		c.MigrationTimeout, c.Cost.D0 = 0, 1
	})
	f.stream = handofftest.Stream{At: holder, Output: 3500, Moves: []int{20}, After: 60}
	for _, id := range randomIDs(seed, 200) {
		f.stream.Prompt = append(f.stream.Prompt, uint32(id))
	}
	return f
}

// atHolder and atTarget set the hooks of an engine's proxy.
func (f *faultFleet) atHolder(h handofftest.Hooks) {
	f.proxies[slices.Index(f.engines, f.holder)].SetHooks(h)
}
func (f *faultFleet) atTarget(h handofftest.Hooks) {
	f.proxies[slices.Index(f.engines, f.target)].SetHooks(h)
}

// whenFetching has something done before the target's engine gets a request that fetches KV.
func (f *faultFleet) whenFetching(do func()) {
	f.atTarget(handofftest.Hooks{Fetch: func(<-chan struct{}) { do() }})
}

// changing has the holder's answer changed: the text after a field's name.
func (f *faultFleet) changing(field, prefix string) {
	f.atHolder(handofftest.Hooks{Kept: func(answer string) string {
		return strings.Replace(answer, `"`+field+`":`, `"`+field+`":`+prefix, 1)
	}})
}

// fault is a row of the table of failures.
type fault struct {
	slow   bool // only with CASCADE_TEST_ALL
	name   string
	before func(f *faultFleet)
	ways   []string
	pause  time.Duration // that the client may see at most; 0 means 3 s: the host is busy
	after  func(f *faultFleet)
}

// faults is the table of failures on real engines. The last rows kill them.
func faults() []fault {
	freeze := func(e *engine) { e.Signal(syscall.SIGSTOP) }
	return []fault{{
		name: "none", before: func(*faultFleet) {}, ways: []string{handedOver},
	}, {
		name: "unknown engine at a dead port", ways: []string{reprompted}, pause: 9 * time.Second,
		before: func(f *faultFleet) {
			f.atHolder(handofftest.Hooks{Kept: func(answer string) string {
				return strings.NewReplacer(`"remote_engine_id":"`, `"remote_engine_id":"x`, `"remote_port":`, `"remote_port":1,"was":`).Replace(answer)
			}})
		},
	}, {
		name: "unknown request", ways: []string{handedOver},
		before: func(f *faultFleet) { f.changing("remote_request_id", `"x","was":`) },
	}, {
		name: "the holder answers null", ways: []string{reprompted},
		before: func(f *faultFleet) { f.changing("kv_transfer_params", `null,"was":`) },
	}, {
		name: "KV of more ids than the prompt", ways: []string{reprompted},
		before: func(f *faultFleet) { f.changing("remote_num_tokens", "1") },
		after:  (*faultFleet).requireNoFetch,
	}, {
		name: "KV of fewer ids than the prompt", ways: []string{reprompted},
		before: func(f *faultFleet) { f.changing("remote_num_tokens", `99,"was":`) },
		after:  (*faultFleet).requireNoFetch,
	}, {
		name: "holder frozen before the handoff", ways: []string{reprompted},
		before: func(f *faultFleet) {
			f.stream.AskOther = true
			f.atHolder(handofftest.Hooks{Keep: func() { freeze(f.holder) }})
		},
	}, {
		name: "holder frozen after the handoff", ways: []string{reprompted}, pause: 9 * time.Second,
		before: func(f *faultFleet) {
			f.stream.AskOther = true
			f.whenFetching(func() { freeze(f.holder) })
		},
	}, {
		name: "client leaves during the handoff", ways: []string{clientLeft},
		before: func(f *faultFleet) {
			left := make(chan struct{})
			f.stream.Leave = left
			f.atTarget(handofftest.Hooks{Fetch: func(gaveUp <-chan struct{}) {
				close(left)
				<-gaveUp
			}})
		},
		after: func(f *faultFleet) {
			testkit.WaitFor(f.t, "engines without requests", func() bool {
				return f.holder.counter(f.t, "vllm:num_requests_running", "")+f.target.counter(f.t, "vllm:num_requests_running", "") == 0
			})
		},
	}, {
		name: "target frozen until the lease is over, blocks reused", ways: []string{stayed}, pause: 14 * time.Second,
		before: func(f *faultFleet) {
			f.whenFetching(func() {
				f.atTarget(handofftest.Hooks{})
				freeze(f.target)
				f.background.Go(func() {
					defer f.target.Signal(syscall.SIGCONT)
					if err := f.reuseExpired(); err != nil {
						f.t.Error(err)
					}
				})
			})
		},
		after: (*faultFleet).requireCleanCache,
	}, {
		name: "holder killed after the handoff", ways: []string{handedOver, reprompted}, pause: 9 * time.Second,
		before: func(f *faultFleet) {
			f.stream.AskOther = true
			f.whenFetching(func() { f.holder.Kill() })
		},
	}, {
		name: "an engine restarted, in both directions", slow: true, before: func(*faultFleet) {}, ways: []string{handedOver},
		after: func(f *faultFleet) {
			f.stream.At = 1 - f.stream.At
			if back := f.Play(f.stream); len(back) != 1 || !back[0].Handoff {
				f.t.Errorf("the other way: %+v\n%s", back, &f.Log)
			}
		},
	}, {
		name: "holder killed while the target fetches", slow: true, ways: []string{handedOver, reprompted}, pause: 9 * time.Second,
		before: func(f *faultFleet) {
			f.stream.AskOther = true
			f.whenFetching(func() {
				freeze(f.holder)
				f.background.Go(func() {
					defer f.holder.Kill()
					err := testkit.WaitUntil("a request that waits for KV", func() bool {
						n, err := handofftest.ReadCounter(f.target.http, f.target.URL, "vllm:num_requests_waiting_by_reason", `reason="deferred"`)
						return err == nil && n > 0
					})
					if err != nil {
						f.t.Error(err)
					}
				})
			})
		},
	}}
}

// requireNoFetch requires that the target's engine got no request for KV.
func (f *faultFleet) requireNoFetch() {
	f.t.Helper()
	for i, p := range f.proxies {
		if got := p.Fetched(); len(got) > 0 {
			f.t.Errorf("r%d's engine was to fetch the KV of %d ids", i, got)
		}
	}
}

// reuseExpired waits until the holder's engine has released KV that was not fetched in time, which it notices when it
// works, and gives all its free blocks to other requests. It may run on any goroutine.
func (f *faultFleet) reuseExpired() error {
	const expired = "vllm:nixl_num_kv_expired_reqs_total"
	e := f.holder
	before, err := handofftest.ReadCounter(e.http, e.URL, expired, "")
	if err != nil {
		return err
	}
	began := time.Now()
	err = testkit.WaitUntil("the end of the lease", func() bool { // the KV of an earlier stream may expire meanwhile
		n, err := handofftest.ReadCounter(e.http, e.URL, expired, "")
		return err == nil && time.Since(began) > (lease+1)*time.Second && n > before
	})
	for i := 0; err == nil && i < handoffKV/context+2; i++ {
		prompt := randomIDs(uint64(90_000+i)+uint64(time.Now().UnixNano()), context-64)
		_, err = tryPost(e.http, e.URL+"/v1/completions", completion{output: 1}.body(map[string]any{"prompt": prompt}))
	}
	return err
}

// requireCleanCache requires that the target's engine answers a request with the prompt of the stream as the holder's
// does: its prefix cache has no blocks of other requests.
func (f *faultFleet) requireCleanCache() {
	f.t.Helper()
	body := completion{output: 60}.body(map[string]any{"prompt": f.stream.Prompt, "return_token_ids": true})
	var ids [2]string
	for i, e := range f.engines {
		ids[i] = gjson.GetBytes(post(f.t, e.http, e.URL+"/v1/completions", body), "choices.0.token_ids").Raw
	}
	if ids[0] != ids[1] {
		f.t.Errorf("the target's prefix cache is wrong:\n%s\n%s", ids[0], ids[1])
	}
}

// testFaults plays the table of failures. The client always gets the ids of the uninterrupted run, no engine dies of
// it, and the next request is answered.
func testFaults(t *testing.T, engines []*engine) {
	table := report.Table{Header: []string{"fault", "way", "the client waits"}, Left: 2}
	for i, row := range faults() {
		if row.slow && os.Getenv("CASCADE_TEST_ALL") == "" {
			continue
		}
		t.Run(row.name, func(t *testing.T) {
			for _, e := range engines {
				if !e.Running() {
					e.restart()
				}
			}
			for attempt := 1; ; attempt++ {
				f := newFaultFleet(t, engines, uint64(7000+10*i+attempt), (i+attempt)%2)
				way, pause := f.play(row)
				if slices.Contains(row.ways, way) {
					table.Rows = append(table.Rows, []string{row.name, way, pause.Round(10 * time.Millisecond).String()})
					if pause > cmp.Or(row.pause, 3*time.Second) {
						t.Errorf("the client waited for %v", pause)
					}
					return
				}
				if t.Logf("%s after %v, not %v\n%s", way, pause, row.ways, &f.Log); attempt == 3 {
					t.Fatal("three times")
				}
			}
		})
	}
	var text strings.Builder
	testkit.NoError(t, table.Text(&text))
	t.Logf("\n%s", &text)
}

// play plays a row, and returns the way that the move took, and for how long the client saw nothing.
func (f *faultFleet) play(row fault) (way string, pause time.Duration) {
	f.t.Helper()
	row.before(f)
	moves := f.Play(f.stream)
	f.background.Wait()
	for _, e := range f.engines {
		if e.Running() {
			e.Signal(syscall.SIGCONT)
			e.http.CloseIdleConnections() // which it closes by itself when it goes on
		}
	}
	if row.after != nil {
		row.after(f)
	}
	for i, e := range f.engines {
		if e.Running() {
			e.text(f.t, completion{prompt: prompt(7000+i, 50), output: 5})
		}
	}
	switch {
	case f.stream.Leave != nil:
		return clientLeft, 0
	case len(moves) != 1:
		return fmt.Sprintf("%d moves", len(moves)), 0
	case moves[0].Err != nil:
		return stayed, moves[0].Pause
	case moves[0].Handoff:
		return handedOver, moves[0].Pause
	}
	return reprompted, moves[0].Pause
}

// testLateFetch shows what stock vLLM does with a request that fetches KV after the holder's lease: it takes what the
// blocks contain by then for the prompt's KV, and keeps it in its prefix cache, where the next request finds it. That is
// why a front end gives such a request up long before, and why the lease should be long.
func testLateFetch(t *testing.T, engines []*engine) {
	f := newFaultFleet(t, engines, 1, 0)
	ask := func(e *engine, ids []int, output int, more map[string]any) gjson.Result {
		fields := map[string]any{"prompt": ids, "return_token_ids": true}
		maps.Copy(fields, more)
		return gjson.ParseBytes(post(t, e.http, e.URL+"/v1/completions", completion{output: output}.body(fields)))
	}
	keep := map[string]any{"kv_transfer_params": map[string]any{"do_remote_decode": true}}
	salts := []string{"", "once"}
	kept := map[string]any{}
	prompt := func(salt string) []int { return randomIDs(uint64(8001+len(salt)), 500) }
	for _, salt := range salts {
		kept[salt] = ask(f.holder, prompt(salt), 1, keep).Get("kv_transfer_params").Value()
	}
	testkit.NoError(f.t, f.reuseExpired())
	for _, salt := range salts {
		more := map[string]any{"kv_transfer_params": kept[salt]}
		if salt != "" {
			more["cache_salt"] = salt
		}
		late := ask(f.target, prompt(salt), 30, more).Get("choices.0.token_ids").Raw
		next := ask(f.target, prompt(salt), 30, nil).Get("choices.0.token_ids").Raw
		want := ask(f.holder, prompt(salt), 30, nil).Get("choices.0.token_ids").Raw
		if late == want || (next == want) != (salt != "") {
			t.Errorf("salt %q: the late answer is right: %v; the next one without it: %v. If vLLM checks leases now, RATIONALE.md and the limits in deploy/vllm/README.md are out of date", salt, late == want, next == want)
		}
	}
}
