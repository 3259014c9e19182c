package inprocess

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

var realTrace = flag.String("trace", "", "a trace of real requests for TestSameAnswers, in place of the generator's")

// question is one request of a script.
type question struct {
	at         time.Duration // after the start of the script
	path, body string
	stream     bool
}

// forms is the number of ways in which clients send requests; the tests cycle through them.
const forms = 16

// form returns the n-th of them.
func form(n int) (path, options string, stream bool) {
	path = "/v1/completions"
	if n&1 != 0 {
		path = "/v1/chat/completions"
	}
	if n&2 != 0 {
		options += `,"return_token_ids":true`
	}
	if stream = n&4 == 0; stream {
		options += `,"stream":true`
		if n&8 != 0 {
			options += `,"stream_options":{"include_usage":true}`
		}
	}
	return path, options, stream
}

// ask returns a question whose prompt differs from all others, because an answer reports what the
// engine had cached.
func ask(number, input, output int) question {
	path, options, stream := form(number)
	rng := rand.New(rand.NewPCG(7, uint64(number)))
	var prompt strings.Builder
	switch {
	case path != "/v1/completions":
		fmt.Fprintf(&prompt, `"messages":[{"role":"system","content":"Häh? %d"},{"role":"user","content":"`, number)
		for range input {
			fmt.Fprintf(&prompt, "%c ", 'a'+rune(rng.IntN(26)))
		}
		prompt.WriteString(`龍"}]`)
	case number%3 == 0:
		fmt.Fprintf(&prompt, `"prompt":[%d`, 1000+number)
		for range input {
			fmt.Fprintf(&prompt, ",%d", 1000+rng.IntN(90_000))
		}
		prompt.WriteString("]")
	default:
		fmt.Fprintf(&prompt, `"prompt":"%d:`, number)
		for range input {
			fmt.Fprintf(&prompt, " %c", 'a'+rune(rng.IntN(26)))
		}
		prompt.WriteString(`"`)
	}
	return question{path: path, stream: stream, body: fmt.Sprintf(`{"model":%q,%s,"max_tokens":%d,"ignore_eos":true%s}`, llm, prompt.String(), output, options)}
}

// script returns requests of the generator that is fitted to public traces, scaled down so that a
// fleet of this size serves them in seconds, or of a real trace unchanged. It adds some requests
// that grow through all stages or are long from the start.
func script(t *testing.T, requests, climbers int, over time.Duration) []question {
	t.Helper()
	list := recorded(t, requests)
	if list == nil {
		g, _ := trace.Named("mixed")
		g.Requests, g.Seed = requests, 4
		var err error
		if list, err = g.Generate(); err != nil {
			t.Fatal(err)
		}
		for i := range list {
			// A request without a full block of KV migrates by re-prompting.
			list[i].Input, list[i].Output = min(max(list[i].Input/4, 16), 6000), min(max(list[i].Output, 30), 150)
		}
	}
	last := list[len(list)-1].At
	var out []question
	for i, q := range list {
		s := ask(i, int(q.Input), int(q.Output))
		s.at = time.Duration(float64(over) * float64(q.At) / float64(last))
		out = append(out, s)
	}
	for i := range climbers {
		// One request grows through all stages, one makes its replica expensive.
		for j, input := range []int{20, 5000} {
			s := ask(requests+2*i+j, input, 400)
			s.at = over * time.Duration(i) / time.Duration(climbers) / 2
			out = append(out, s)
		}
	}
	return out
}

// recorded returns the beginning of the trace that the flag names, or nil without one.
func recorded(t *testing.T, requests int) []trace.Request {
	t.Helper()
	if *realTrace == "" {
		return nil
	}
	f, err := os.Open(*realTrace)
	testkit.NoError(t, err)
	defer f.Close()
	list, err := trace.Read(f, *realTrace)
	testkit.NoError(t, err)
	if list, err = (trace.Shape{Rate: 1, MaxLength: 60_000, Limit: requests}).Apply(list); err != nil {
		t.Fatal(err)
	}
	return list
}

// teachShapes lets every front end learn the format of its engine's answers that are not streamed: only
// then can it build such an answer from a stream, and migrate the request.
func (r *fleetHarness) teachShapes() {
	r.T.Helper()
	for _, n := range r.cfg.Fleet.Fleet.Replicas {
		for i := range forms {
			if path, options, stream := form(i); !stream {
				body := fmt.Sprintf(`{"model":%q,"prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":1%s}`, llm, options)
				resp, err := r.HTTP.Post("http://"+n.Address+path, "application/json", strings.NewReader(body))
				testkit.NoError(r.T, err)
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					r.T.Fatalf("%s: %s", body, resp.Status)
				}
			}
		}
	}
}

// play sends all questions of a script, at their times, and returns the answers.
func (r *fleetHarness) play(list []question) []string {
	out := make([]string, len(list))
	var wg sync.WaitGroup
	for i, q := range list {
		wg.Go(func() {
			time.Sleep(q.at)
			resp, err := r.open(context.Background(), q.path, "", strings.NewReader(q.body))
			if err != nil {
				out[i] = "failed: " + err.Error()
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				out[i] = "failed: " + err.Error()
				return
			}
			text := withoutIdentity(body)
			if q.stream {
				text = streamedText(text)
			}
			out[i] = fmt.Sprintf("%s %s\n%s", resp.Status, resp.Header.Get("content-type"), text)
		})
	}
	wg.Wait()
	return out
}

// drainPause is the time between two drains of rotateDrains: every change of the routes costs the control plane and the
// proxies more than the requests do.
const drainPause = 100 * time.Millisecond

// rotateDrains drains one replica after the other until the returned function is
// called.
func (r *fleetHarness) rotateDrains(ids ...string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			id := ids[i%len(ids)]
			if err := r.TryOrder("drain", id); err != nil {
				r.T.Error(err)
				return
			}
			for len(r.fronts[id].LocalLegs()) > 0 && ctx.Err() == nil {
				time.Sleep(tick)
			}
			if err := r.TryOrder("undrain", id); err != nil {
				r.T.Error(err)
				return
			}
			time.Sleep(drainPause)
		}
	})
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// fiveStages divides the lengths of a script; the last stage has two replicas.
func fiveStages() []policies.Stage {
	cuts := []policies.Tokens{60, 110, 190, 320}
	if *realTrace != "" {
		cuts = []policies.Tokens{300, 700, 1200, 3000}
	}
	return stages(cuts, ids(0), ids(1), ids(2), ids(3), ids(4, 5))
}

// streamedText returns the content of a stream: the concatenated values of each member of its
// events, the events without these members, each kind once, and all events that have none of them. The number of tokens per event
// depends on how fast the client reads.
func streamedText(answer string) string {
	members := make(map[string]string)
	var kinds []string
	if head, events, ok := strings.Cut(answer, "\ndata: "); ok && !strings.HasPrefix(head, "data: ") {
		kinds, answer = append(kinds, head), "data: "+events // the status line is no part of the first event
	}
	for event := range strings.SplitSeq(answer, "\n\n") {
		kind := varying.ReplaceAllStringFunc(event, func(s string) string {
			m := varying.FindStringSubmatch(s)
			if value := strings.Trim(m[2], `"[]`); m[2] != "null" {
				if strings.HasSuffix(m[1], "ids") && value != "" {
					value += ","
				}
				members[m[1]] += value
			}
			return ""
		})
		if kind == event || !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		kinds = append(kinds, name+": "+members[name])
	}
	return strings.Join(kinds, "\n")
}

var varying = regexp.MustCompile(`,?"(text|content|role|finish_reason|stop_reason|token_ids|prompt_token_ids|system_fingerprint)":("(?:[^"\\]|\\.)*"|\[[0-9,]*\]|null)`)

// TestStreamedText checks that the content of a stream is the same whether its tokens come in one event or in several,
// and differs with every token, event without text, and status.
func TestStreamedText(t *testing.T) {
	const (
		event = `data: {"id":0,"choices":[{"index":0,"text":"%s","token_ids":[%s],"finish_reason":%s}]}` + "\n\n"
		usage = `data: {"id":0,"choices":[],"usage":{"total_tokens":3}}` + "\n\ndata: [DONE]\n\n"
	)
	one := fmt.Sprintf(event, "abc", "1,2,3", `"length"`)
	two := fmt.Sprintf(event, "a", "1", "null") + fmt.Sprintf(event, "bc", "2,3", `"length"`)
	for _, head := range []string{"", "200 text/event-stream\n"} {
		want := streamedText(head + two + usage)
		if got := streamedText(head + one + usage); got != want {
			t.Errorf("in one event:\n%s\nin two:\n%s", got, want)
		}
		for name, other := range map[string]string{
			"token": head + fmt.Sprintf(event, "abc", "1,2,4", `"length"`) + usage, "text": head + strings.Replace(two, "bc", "bd", 1) + usage,
			"usage": head + two, "status": "500 " + head + two + usage,
		} {
			if streamedText(other) == want {
				t.Errorf("head %q: another %s is the same", head, name)
			}
		}
	}
}

// cached matches how many prompt tokens an engine had cached. The engine that began an answer
// reports the number when the answer ends or the request migrates; after a migration by
// re-prompting it is unknown.
var cached = regexp.MustCompile(`"cached_tokens":([0-9]+|null)`)

// TestSameAnswers plays a trace of all kinds of requests to a fleet whose requests outgrow their
// stages, up to the last of five, and whose replicas are drained one after the other. The answers equal, byte for byte,
// those of a fleet without migrations.
func TestSameAnswers(t *testing.T) {
	requests, climbers, over := 20, 3, 3*time.Second
	if everything {
		requests, climbers, over = 500, 40, 40*time.Second
	}
	cases := []struct {
		name, mode string
		ranks      int
		on         plane
	}{
		{"live", config.MigrationLive, 1, onEnvoy},
		{"regions", config.MigrationLive, 2, onProxy},
		{"reprompt", config.MigrationReprompt, 1, onProxy},
	}
	list := script(t, requests, climbers, over)
	parallel := func(f *config.Fleet, ranks int) {
		for i := range f.Replicas {
			f.Replicas[i].TP = ranks
		}
	}
	var still [3][]string // the answers by ranks, which the engine's fingerprint shows
	t.Run("still", func(t *testing.T) {
		for _, ranks := range []int{1, 2} {
			t.Run(fmt.Sprint("ranks ", ranks), func(t *testing.T) {
				t.Parallel()
				r := newFleetHarness(t, harnessConfig{replicas: 1, edit: func(f *config.Fleet) { f.Speed = 50; parallel(f, ranks) }})
				still[ranks] = r.play(list)
			})
		}
	})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			planes(t, c.on, func(t *testing.T, envoy string) {
				want := still[c.ranks]
				// No replica may be lost while the host is busy: the plan would be repaired.
				r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 6, control: keepReplicas, edit: func(f *config.Fleet) {
					f.Migration, f.Speed = config.Migration{Mode: c.mode}, 2
					parallel(f, c.ranks)
				}})
				r.plan(fiveStages()...)
				r.teachShapes()
				stop := r.rotateDrains("r4", "r1", "r2", "r3", "r0")
				got := r.play(list)
				stop()
				compare(t, list, got, want, c.mode)
				if !r.grownToLast() {
					// The host is so busy that the requests of the script end before they have grown through all stages. One
					// without an end does, unless it comes to the last stage for another reason: then another one does.
					var streams []*harness.Stream
					r.WaitFor("a request grows into the last stage", func() bool {
						if r.grownToLast() {
							return true
						}
						if r.countInLast() == len(streams) && len(streams) < 8 {
							streams = append(streams, r.Stream(harness.Prompt(1, 80, forever)))
						}
						return false
					})
					r.WaitForGrowth(streams)
					r.RequireTexts(streams)
				}
				r.requireSettled(c.mode)
			})
		})
	}
}

// grownToLast reports whether a request has migrated to the last stage because it outgrew its own. On a busy host a
// replica may leave the plan and join another stage, so the plan in force says which replicas the last stage has.
func (r *fleetHarness) grownToLast() bool {
	done, _ := r.migrations()
	stages := r.status().Models[0].Stages
	return slices.ContainsFunc(done, func(m move.Migration) bool {
		return m.Cause == policies.Growth && slices.ContainsFunc(stages[len(stages)-1].Replicas, func(n control.Replica) bool { return n.ID == m.To })
	})
}

// countInLast counts the requests that run in the last stage.
func (r *fleetHarness) countInLast() (n int) {
	stages := r.status().Models[0].Stages
	for _, one := range stages[len(stages)-1].Replicas {
		n += len(r.fronts[string(one.ID)].LocalLegs())
	}
	return n
}

// withoutIdentity returns an answer without its id and time, which differ between answers.
func withoutIdentity(b []byte) string {
	return identity.ReplaceAllString(string(b), `"$1":0`)
}

var identity = regexp.MustCompile(`"(id|created)":(?:"[^"]*"|[0-9]+)`)

// compare checks answers against those of a fleet without migrations.
func compare(t *testing.T, list []question, got, want []string, mode string) {
	t.Helper()
	different := 0
	for i, q := range list {
		got, want := got[i], want[i]
		if mode == config.MigrationReprompt {
			got, want = cached.ReplaceAllString(got, ""), cached.ReplaceAllString(want, "")
		}
		if !strings.HasPrefix(want, "200 ") {
			t.Fatalf("%s %.200s\nwithout migrations: %.500s", q.path, q.body, want)
		}
		if got == want {
			continue
		}
		if different++; different <= 3 {
			at := 0
			for at < len(want) && at < len(got) && want[at] == got[at] {
				at++
			}
			at = max(0, at-200)
			t.Errorf("%s %.200s\n got … %.500s\nwant … %.500s", q.path, q.body, got[min(at, len(got)):], want[min(at, len(want)):])
		}
	}
	if different > 0 {
		t.Errorf("%d of %d answers differ", different, len(list))
	}
}

// requireSettled checks the records of a fleet whose requests have migrated.
func (r *fleetHarness) requireSettled(mode string) {
	r.T.Helper()
	if r.tally() == 0 {
		r.T.Error("no request migrated")
	}
	done, _ := r.migrations()
	var stalls []time.Duration
	hops, most := make(map[string]int), 0
	for _, m := range done {
		if m.Mode != mode || m.Stall <= 0 || m.Mode == "live" && m.Rounds == 0 {
			r.T.Errorf("a migration by %q with %d rounds and a stall of %v", m.Mode, m.Rounds, m.Stall)
		}
		stalls = append(stalls, m.Stall)
		hops[m.Request]++
		most = max(most, hops[m.Request])
	}
	r.T.Logf("%d requests migrated, at most %d times", len(hops), most)
	if len(stalls) > 0 {
		slices.Sort(stalls)
		r.T.Logf("stalls: median %v, p99 %v, longest %v", stalls[len(stalls)/2], stalls[len(stalls)*99/100], stalls[len(stalls)-1])
	}
}
