package dialecttest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/dialect/known"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// each runs a test with every kind of engine.
func each(t *testing.T, test func(t *testing.T, k kind)) {
	for _, k := range kinds {
		t.Run(k.dialect.Capabilities().Name, func(t *testing.T) { test(t, k) })
	}
}

// dialects returns those of all kinds.
func dialects() (all []dialect.Dialect) {
	for _, k := range kinds {
		all = append(all, k.dialect)
	}
	return all
}

// ask asks an engine what it is.
func ask(t *testing.T, e *engine) (engineinfo.Info, dialect.Dialect) {
	info, d, err := dialect.Ask(t.Context(), func(_ context.Context, path string) (*http.Response, error) { return http.Get(e.URL + path) }, dialects())
	testkit.NoError(t, err)
	return info, d
}

// TestAsk checks that an engine is recognised, and what is learnt of it.
func TestAsk(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		info, d := ask(t, newEngine(t, k))
		_, handsOver := k.dialect.(dialect.KV)
		if d.Capabilities().Name != k.dialect.Capabilities().Name || info.Version != "1.2.3" || info.KVTokens != 100 || info.Context("m") != 4096 || (info.Connector == engineinfo.Absent) == handsOver {
			t.Errorf("%T: %+v", d, info)
		}
	})
}

// TestLoad checks the load that an engine states, and that no other answer is taken for one.
func TestLoad(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		whole := fmt.Sprintf(k.metrics, 9)
		m, err := k.dialect.Load([]byte(whole))
		if want := (policies.EngineLoad{Capacity: 100, KVUsed: 7, Running: 3, Waiting: 2, Queued: 2}); err != nil || m.Load != want || !m.StatesRequests {
			t.Errorf("%+v, %v", m, err)
		}
		for n := range len(whole) {
			m, _ := k.dialect.Load([]byte(whole[:n]))
			testkit.NoError(t, policies.Load{Engine: m.Load}.Validate())
		}
		for _, other := range []string{"", "{}", "\x00", "process_start_time_seconds 1\n", "<html>"} {
			if m, err := k.dialect.Load([]byte(other)); !errors.Is(err, dialect.ErrNoMetrics) || m != (engineinfo.Metrics{}) {
				t.Errorf("%q: %+v, %v", other, m, err)
			}
		}
		counted := 0
		for _, name := range k.dialect.Capabilities().Counters {
			counted += strings.Count(whole, name)
		}
		if counted == 0 {
			t.Error("no line of the load is a counter of its steps")
		}
	})
}

// TestWithheld checks that no body for an engine has what only the fleet may send.
func TestWithheld(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		for _, name := range k.dialect.Capabilities().Fields.Withheld {
			r, err := k.dialect.Capabilities().Fields.Parse(openai.Completions, fmt.Appendf(nil, `{"prompt":"x",%q:{"a":1},"top_p":1}`, name))
			testkit.NoError(t, err)
			q, ok := r.Resume()
			for _, body := range [][]byte{r.PlainBody(), r.StreamBody(), k.dialect.Continue(&q, dialect.Continuation{IDs: []uint32{1}}), k.dialect.Tokenize(&r).Body} {
				if !ok || gjson.GetBytes(body, name).Exists() || !json.Valid(body) {
					t.Errorf("%s: %s", name, body)
				}
			}
		}
	})
}

// TestUnknownEngine checks that an engine that has not said what it is gets nothing that any kind of engine must not
// get.
func TestUnknownEngine(t *testing.T) {
	all := known.Dialects()
	spoken := all[0].Capabilities().Fields.Withheld
	for _, d := range all {
		for _, name := range d.Capabilities().Fields.Withheld {
			if !slices.Contains(spoken, name) {
				t.Errorf("it gets %s, which is withheld from %s", name, d.Capabilities().Name)
			}
		}
	}
}

// TestKV checks the requests by which engines hand KV over, and that others are asked for nothing.
func TestKV(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		kv, e := dialect.KVOf(k.dialect), newEngine(t, k)
		ids := []uint32{1, 2, 3}
		r, _ := k.dialect.Capabilities().Fields.Parse(openai.Completions, []byte(`{"model":"m","prompt":"x","max_tokens":9}`))
		q, _ := r.Resume()
		if keeps, fetches := kv.Transfers(kv.Continue(&q, dialect.Continuation{IDs: ids})); keeps || fetches {
			t.Error("a leg that computes transfers KV")
		}
		if _, ok := k.dialect.(dialect.KV); !ok {
			if _, _, err := kv.Kept(nil, 3); !errors.Is(err, engineinfo.ErrNoConnector) {
				t.Error(err)
			}
			return
		}
		keep := kv.Keep(&q, ids)
		answer := call(t, e, openai.Completions.Path(), keep)
		params, _, err := kv.Kept(answer, 3)
		testkit.NoError(t, err)
		if keeps, fetches := kv.Transfers(keep); !keeps || fetches {
			t.Errorf("keep: %s", keep)
		}
		fetch := kv.Continue(&q, dialect.Continuation{IDs: ids, Fetch: params})
		if keeps, fetches := kv.Transfers(fetch); keeps || !fetches {
			t.Errorf("fetch: %s", fetch)
		}
		for _, n := range []int{2, 4} {
			if _, _, err := kv.Kept(answer, n); err == nil {
				t.Errorf("KV of 3 ids is taken for that of %d", n)
			}
		}
	})
}

// call sends a request and returns the answer.
func call(t testing.TB, e *engine, path string, body []byte) []byte {
	resp := testkit.Must(http.Post(e.URL+path, "application/json", bytes.NewReader(body)))
	defer resp.Body.Close()
	answer := testkit.Must(io.ReadAll(resp.Body))
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", path, resp.Status, answer)
	}
	return answer
}

// leg is an answer as a front end reads it.
type leg struct {
	ids    []uint32
	text   string
	finish string
	usage  openai.Usage
	done   bool
}

func readLeg(t testing.TB, e *engine, d dialect.Dialect, endpoint openai.Endpoint, body []byte) (l leg) {
	path, translate := d.Open(endpoint, body)
	var src io.Reader = bytes.NewReader(call(t, e, path, body))
	if translate != nil {
		src = translate(src)
	}
	for events := openai.NewReader(src); ; {
		ev, err := events.Next()
		if err == io.EOF {
			return l
		}
		testkit.NoError(t, err)
		var c openai.Chunk
		testkit.NoError(t, c.Parse(ev))
		l.ids = testkit.Must(c.AppendIDs(l.ids))
		l.text += c.Text()
		if c.Finish {
			l.finish = c.FinishReason()
		}
		if u, ok := c.Usage(); ok {
			l.usage = u
		}
		l.done = l.done || c.Done
	}
}

// request returns a streamed request of 12 tokens.
func request(endpoint openai.Endpoint) []byte {
	prompt := `"prompt":"tell"`
	if endpoint == openai.Chat {
		prompt = `"messages":[{"role":"user","content":"tell"}]`
	}
	return []byte(`{"model":"m",` + prompt + `,"max_tokens":12,"temperature":0,"stream":true}`)
}

// TestContinue checks that an answer that is continued from its ids, after any of its tokens, is the answer that
// is not interrupted.
func TestContinue(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		e := newEngine(t, k)
		_, d := ask(t, e)
		for _, endpoint := range []openai.Endpoint{openai.Completions, openai.Chat} {
			r := testkit.Must(d.Capabilities().Fields.Parse(endpoint, request(endpoint)))
			q, ok := r.Resume()
			tokenize := d.Tokenize(&r)
			if !ok || tokenize.Body == nil {
				t.Fatalf("%s: %v, %s", endpoint.Path(), ok, tokenize.Body)
			}
			prompt := testkit.Must(openai.ParseTokens(call(t, e, tokenize.Path, tokenize.Body), tokenize.Tokens))
			whole := readLeg(t, e, d, endpoint, d.Continue(&q, dialect.Continuation{IDs: prompt}))
			if len(whole.ids) != 12 || whole.text != textsOf(whole.ids) || whole.finish != "length" || !whole.done || whole.usage.Output != 12 {
				t.Fatalf("%s: %+v", endpoint.Path(), whole)
			}
			if endpoint == openai.Completions || !d.Capabilities().ChatsByIDs {
				if first := readLeg(t, e, d, endpoint, r.StreamBody()); !slices.Equal(first.ids, whole.ids) {
					t.Errorf("%s: streamed %v, by ids %v", endpoint.Path(), first.ids, whole.ids)
				}
			}
			for n := 1; n < 12; n++ {
				rest := readLeg(t, e, d, endpoint, d.Continue(&q, dialect.Continuation{IDs: append(slices.Clone(prompt), whole.ids[:n]...), Output: n}))
				if !slices.Equal(rest.ids, whole.ids[n:]) || textsOf(whole.ids[:n])+rest.text != whole.text {
					t.Errorf("%s after %d: %+v", endpoint.Path(), n, rest)
				}
			}
			warm := d.Continue(&q, dialect.Continuation{IDs: prompt, Warm: true})
			path, _ := d.Open(endpoint, warm)
			if answer := call(t, e, path, warm); !json.Valid(answer) {
				t.Errorf("warming: %s", answer)
			}
		}
	})
}

// startFrontEnd runs a front end of an engine, and returns the addresses of its listeners.
func startFrontEnd(t *testing.T, replica policies.ReplicaID, e *engine) (f *frontend.Server, clients, peers string) {
	c, p := testkit.Must(net.Listen("tcp", "127.0.0.1:0")), testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	f = testkit.Must(frontend.New(frontend.Config{Replica: replica, Engine: e.URL, Edges: policies.BucketEdges(1<<16, 4), Listener: c, PeerListener: p,
		Dialects: dialects(), TokenizeTimeout: time.Minute, HangTimeout: time.Minute, MinPause: time.Minute, MigrationTimeout: time.Minute}))
	t.Cleanup(testkit.Run(t, f.Run))
	testkit.WaitFor(t, "the front end is ready", func() bool { return f.Status().EngineReady })
	return f, c.Addr().String(), p.Addr().String()
}

// TestVocabulary checks that a token id outside the vocabulary is refused where it would kill the engine, on any way
// to it.
func TestVocabulary(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		_, clients, peers := startFrontEnd(t, "r0", newEngine(t, k))
		leg := testkit.Must(http.NewRequest("POST", "http://"+peers+"/v1/completions", strings.NewReader(`{"prompt":[1000]}`)))
		leg.Header = http.Header{frontend.ForwardHeader: {"r1"}, frontend.RequestHeader: {"r1/1"}, frontend.LegEpochHeader: {"1"}}
		resp := testkit.Must(http.DefaultClient.Do(leg))
		resp.Body.Close()
		text := testkit.Must(http.NewRequest("POST", "http://"+peers+"/detokenize", strings.NewReader(`{"tokens":[1]}`)))
		text.Header = leg.Header
		answer := testkit.Must(http.DefaultClient.Do(text))
		answer.Body.Close()
		if mark := answer.Header.Get(length.RefusedHeader); answer.StatusCode != http.StatusOK || mark != "" {
			t.Errorf("a peer's text: %s, marked %q as refused", answer.Status, mark)
		}
		if refused := resp.StatusCode == http.StatusServiceUnavailable; refused != (k.dialect.Capabilities().LastID != nil) {
			t.Errorf("a peer's leg: %s", resp.Status)
		}
		for _, test := range []struct {
			path, body string
			outside    bool
		}{
			{"/v1/completions", `{"prompt":[1,999]}`, false},
			{"/v1/completions", `{"prompt":[1,1000]}`, true},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"input_ids":[1000]}`, true},
			{"/v1/embeddings", `{"prompt":"x","input":[1000]}`, true},
		} {
			resp := testkit.Must(http.Post("http://"+clients+test.path, "application/json", strings.NewReader(test.body)))
			answer := testkit.Must(io.ReadAll(resp.Body))
			resp.Body.Close()
			refused := resp.StatusCode == http.StatusBadRequest && strings.Contains(string(answer), "out of the vocabulary: ids are whole numbers from 0 to 999")
			if want := test.outside && k.dialect.Capabilities().LastID != nil; refused != want {
				t.Errorf("%s %s: %s: %s", test.path, test.body, resp.Status, answer)
			}
		}
	})
}

// TestVocabularyOfLateKind checks that the vocabulary is known of an engine that says what it is only after it has
// become ready.
func TestVocabularyOfLateKind(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		e := newEngine(t, k)
		e.mute.Store(1)
		_, clients, _ := startFrontEnd(t, "r0", e)
		testkit.WaitFor(t, "the front end knows the vocabulary", func() bool {
			resp := testkit.Must(http.Post("http://"+clients+"/v1/completions", "application/json", strings.NewReader(`{"prompt":[1000]}`)))
			defer resp.Body.Close()
			return resp.StatusCode == http.StatusBadRequest || k.dialect.Capabilities().LastID == nil
		})
	})
}

// TestMove runs two front ends with an engine each, and moves a stream between them in the middle of its answer.
func TestMove(t *testing.T) {
	each(t, func(t *testing.T, k kind) {
		for _, endpoint := range []openai.Endpoint{openai.Completions, openai.Chat} {
			t.Run(endpoint.Path(), func(t *testing.T) { move(t, k, endpoint) })
		}
	})
}

func move(t *testing.T, k kind, endpoint openai.Endpoint) {
	engines := [2]*engine{newEngine(t, k), newEngine(t, k)}
	engines[0].hold = make(chan struct{})
	defer close(engines[0].hold)
	front, clients, _ := startFrontEnd(t, "r0", engines[0])
	_, _, peer := startFrontEnd(t, "r1", engines[1])
	resp := testkit.Must(http.Post("http://"+clients+endpoint.Path(), "application/json", bytes.NewReader(request(endpoint))))
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	var got strings.Builder
	read := func(until string) {
		for !strings.Contains(got.String(), until) {
			line, err := lines.ReadString('\n')
			got.WriteString(line)
			if err != nil {
				t.Fatalf("%v after %s", err, got.String())
			}
		}
	}
	prompt := tokensOf("tell")
	if endpoint == openai.Chat {
		prompt = tokensOf("user: tell")
	}
	ids := slices.Clone(prompt)
	for range 12 {
		ids = append(ids, next(ids))
	}
	want := ids[len(prompt):]
	read(fmt.Sprintf("w%d", want[3]))
	var held frontend.LocalLeg
	for _, l := range front.LocalLegs() {
		held = l
	}
	if held.Pinned != policies.NotPinned {
		t.Fatalf("the stream is pinned: %v", held.Pinned)
	}
	_, err := front.Migrate(t.Context(), frontend.Migration{Stream: held.Request.ID, From: "r0", Epoch: held.Epoch, To: policies.Target{Replica: "r1", Address: peer}, Cached: -1})
	testkit.NoError(t, err)
	read("[DONE]")
	text := ""
	for line := range strings.Lines(got.String()) {
		data := strings.TrimPrefix(line, "data: ")
		text += gjson.Get(data, "choices.0.text").Str + gjson.Get(data, "choices.0.delta.content").Str
	}
	if text != textsOf(want) {
		t.Errorf("the client got %q, want %q", text, textsOf(want))
	}
	if strings.Contains(got.String(), `_ids":[`) {
		t.Errorf("the client got ids that it did not ask for: %s", got.String())
	}
}
