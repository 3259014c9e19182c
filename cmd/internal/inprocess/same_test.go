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
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

var realTrace = flag.String("trace", "", "a trace of real requests for TestSameAnswers, in place of the generator's")

// question is one request of a script.
type question struct {
	at         time.Duration // after the beginning
	path, body string
	stream     bool
}

// forms are the ways in which clients ask, one after the other.
const forms = 16

// form is the n-th of them.
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

// ask is a question whose prompt is like no other's: what an engine has cached
// shows in an answer.
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

// script is a trace of the generator that is fitted to public ones, so small
// that a fleet of this size serves it in seconds, or a real one as it is; and
// some requests that grow through all stages or are long from the start.
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
			// What has no full block of KV moves by re-prompting.
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
		// One grows through all stages, one makes an outlier of its replica.
		for j, input := range []int{20, 5000} {
			s := ask(requests+2*i+j, input, 400)
			s.at = over * time.Duration(i) / time.Duration(climbers) / 2
			out = append(out, s)
		}
	}
	return out
}

// recorded is the beginning of the trace that the flag names, nil without one.
func recorded(t *testing.T, requests int) []trace.Request {
	t.Helper()
	if *realTrace == "" {
		return nil
	}
	f, err := os.Open(*realTrace)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list, err := trace.Read(f, *realTrace)
	if err != nil {
		t.Fatal(err)
	}
	if list, err = (trace.Shape{Rate: 1, MaxLength: 60_000, Limit: requests}).Apply(list); err != nil {
		t.Fatal(err)
	}
	return list
}

// teach lets every front see how its engine writes an answer that is not
// streamed: only then it can make one of a stream, and move it.
func (r *fleetHarness) teach() {
	r.t.Helper()
	for _, n := range r.cfg.Fleet.Fleet.Replicas {
		for i := range forms {
			if path, options, stream := form(i); !stream {
				body := fmt.Sprintf(`{"model":%q,"prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":1%s}`, llm, options)
				resp, err := r.client.Post("http://"+n.Address+path, "application/json", strings.NewReader(body))
				if err != nil {
					r.t.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					r.t.Fatalf("%s: %s", body, resp.Status)
				}
			}
		}
	}
}

// play asks all questions of a script, at their times, and returns the answers.
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
			text := anonymous(body)
			if q.stream {
				text = streamedText(text)
			}
			out[i] = fmt.Sprintf("%s %s\n%s", resp.Status, resp.Header.Get("content-type"), text)
		})
	}
	wg.Wait()
	return out
}

// rotation drains one replica after the other until the returned function is
// called.
func (r *fleetHarness) rotation(ids ...string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			id := ids[i%len(ids)]
			if err := r.ordered("drain", id); err != nil {
				r.t.Error(err)
				return
			}
			for len(r.fronts[id].LocalLegs()) > 0 && ctx.Err() == nil {
				time.Sleep(tick)
			}
			if err := r.ordered("undrain", id); err != nil {
				r.t.Error(err)
				return
			}
		}
	})
	return sync.OnceFunc(func() { cancel(); wg.Wait() })
}

// fiveStages divide the lengths of a script; the last has two replicas.
func fiveStages() []policies.Stage {
	cuts := []policies.Tokens{60, 110, 190, 320}
	if *realTrace != "" {
		cuts = []policies.Tokens{300, 700, 1200, 3000}
	}
	return stages(cuts, ids(0), ids(1), ids(2), ids(3), ids(4, 5))
}

// streamedText returns the content of a stream: each member of its events with all that it is in
// turn, and the events without them, each kind once. How many tokens an event
// has depends on how fast it is read.
func streamedText(answer string) string {
	members := make(map[string]string)
	var kinds []string
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
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		kinds = append(kinds, name+": "+members[name])
	}
	return strings.Join(kinds, "\n")
}

var varying = regexp.MustCompile(`,?"(text|content|role|finish_reason|stop_reason|token_ids|prompt_token_ids|system_fingerprint)":("(?:[^"\\]|\\.)*"|\[[0-9,]*\]|null)`)

// cached is how much of its prompt an engine had. The engine that began an
// answer reports when it ends, or is handed over; after a migration by re-prompting
// it is unknown.
var cached = regexp.MustCompile(`"cached_tokens":([0-9]+|null)`)

// TestSameAnswers: a trace of all kinds of requests, played to a fleet whose
// requests grow out of their stages and are drained from one replica after the
// other, has byte for byte the answers that it has where nothing moves.
func TestSameAnswers(t *testing.T) {
	requests, climbers, over := 30, 4, 3*time.Second
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
		{"reprompt", config.MigrationReprompt, 1, onEnvoy},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			planes(t, c.on, func(t *testing.T, envoy string) {
				list := script(t, requests, climbers, over)
				ranks := func(f *config.Fleet) {
					for i := range f.Replicas {
						f.Replicas[i].TP = c.ranks
					}
				}
				var want []string
				t.Run("still", func(t *testing.T) {
					r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 6, edit: func(f *config.Fleet) { f.Speed = 50; ranks(f) }})
					r.plan(fiveStages()...)
					want = r.play(list)
				})
				r := moving(t, envoy, c.mode, 6, ranks, func(f *config.Fleet) { f.Speed = 1 })
				r.plan(fiveStages()...)
				r.teach()
				// On a machine that is too busy requests end before they move.
				for n := 0; n == 0 || n < 10 && !r.moved(); n++ {
					stop := r.rotation("r4", "r1", "r2", "r3", "r0")
					got := r.play(salted(list, n))
					stop()
					compare(t, list, got, want, c.mode)
				}
				r.settled(c.mode)
			})
		})
	}
}

// salted are the questions of a later round: what engines have cached of the
// rounds before does not count for it.
func salted(list []question, round int) []question {
	out := slices.Clone(list)
	for i := range out {
		out[i].body = strings.TrimSuffix(out[i].body, "}") + fmt.Sprintf(`,"cache_salt":"%d"}`, round)
	}
	return out
}

// compare checks answers against those of a fleet in which nothing moves.
func compare(t *testing.T, list []question, got, want []string, mode string) {
	t.Helper()
	different := 0
	for i, q := range list {
		got, want := got[i], want[i]
		if mode == config.MigrationReprompt {
			got, want = cached.ReplaceAllString(got, ""), cached.ReplaceAllString(want, "")
		}
		if !strings.HasPrefix(want, "200 ") {
			t.Fatalf("%s %.200s\nwithout moves: %.500s", q.path, q.body, want)
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

// settled checks the records of a fleet whose requests have moved.
func (r *fleetHarness) settled(mode string) {
	r.t.Helper()
	if r.tally() == 0 {
		r.t.Error("nothing moved")
	}
	done, _ := r.moves()
	var stalls []time.Duration
	hops, most := make(map[string]int), 0
	for _, m := range done {
		if m.Mode != mode || m.Stall <= 0 || m.Mode == "live" && m.Rounds == 0 {
			r.t.Errorf("a move by %q with %d rounds and a stall of %v", m.Mode, m.Rounds, m.Stall)
		}
		stalls = append(stalls, m.Stall)
		hops[m.Request]++
		most = max(most, hops[m.Request])
	}
	r.t.Logf("%d requests moved, at most %d times", len(hops), most)
	if len(stalls) > 0 {
		slices.Sort(stalls)
		r.t.Logf("stalls: median %v, p99 %v, longest %v", stalls[len(stalls)/2], stalls[len(stalls)*99/100], stalls[len(stalls)-1])
	}
}

// TestChain: requests move until each of them has four times or more, while
// their clients read.
func TestChain(t *testing.T) {
	for _, mode := range []string{config.MigrationLive, config.MigrationReprompt} {
		t.Run(mode, func(t *testing.T) {
			idlePlanes(t, onProxy, func(t *testing.T, envoy string) {
				r := moving(t, envoy, mode, 3, func(f *config.Fleet) { f.Speed = 2 })
				load := newTraffic(r, 2, 20, 200, 2000)
				var streams []*live
				for n := range 4 {
					streams = append(streams, r.stream(prompt(120+n*900, forever)))
				}
				far := func() bool {
					n := 0
					for _, f := range r.fronts {
						f.EachStream(func(s *frontend.Stream) bool {
							if s.Request().MaxOutput == forever && s.Splices() >= 4 {
								n++
							}
							return true
						})
					}
					return n == len(streams)
				}
				for n := 0; !far(); n++ {
					id := []string{"r0", "r1", "r2"}[n%3]
					r.empty(id)
					r.refill(id)
				}
				r.grows(streams)
				load.stop()
				load.report()
				load.faithful(streams)
				r.settled(mode)
			})
		})
	}
}
