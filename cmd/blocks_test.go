package cmd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/migrator/blocks"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

var vocabulary = sync.OnceValues(model.NewVocabulary)

// seat is a real emulator with a real client of its block table.
type seat struct {
	url    string
	blocks *blocks.Client
	stop   func()
}

// seats starts n replicas that can continue each other's requests, at the given
// speed.
func seats(t testing.TB, n, ranks int, speed float64) []*seat {
	t.Helper()
	v, err := vocabulary()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]*seat, n)
	for i := range out {
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		engine, err := emulator.New(emulator.Config{
			Model: "m", Vocabulary: v, Speed: speed, Blocks: dir, TensorParallel: ranks,
			// Different numbers of blocks: the same block is never at the same place.
			KVTokens: policies.Tokens(8192 + 64*i), Context: 4096,
			Profile: cost.Profile{Name: "p", Unit: "seconds", Ranks: 1, D0: 10e-3, D1: 1e-4, D2: 1e-5, KVBytesPerToken: 131072, KVTokens: 8192, MaxBatch: 16},
		})
		if err != nil {
			t.Fatal(err)
		}
		client, err := blocks.New(blocks.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		out[i] = &seat{blocks: client}
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		all.Go(func() {
			if err := engine.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := client.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		server := httptest.NewServer(engine.Handler())
		out[i].url = server.URL
		out[i].stop = sync.OnceFunc(func() {
			cancel()
			all.Wait()
			server.CloseClientConnections()
			server.Close()
		})
		t.Cleanup(out[i].stop)
		await(t, func() bool { _, ok := client.Memory(); return ok })
	}
	return out
}

func await(t testing.TB, done func() bool) {
	t.Helper()
	for n := 0; !done(); n++ {
		if n == 2000 {
			t.Fatal("it does not come to pass")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// leg is one streaming request at one seat.
type leg struct {
	name  string
	body  *bufio.Scanner
	close func()

	text    strings.Builder
	ids     []uint32
	prompt  int // by usage
	cached  int
	finish  string
	ended   bool // by the end marker
	refusal string
}

// open sends a request and reads nothing yet.
func (s *seat) open(t testing.TB, path, name, body string) *leg {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, "POST", s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("X-Cascade-Leg", name)
	r, err := http.DefaultTransport.RoundTrip(q)
	if err != nil {
		t.Fatal(err)
	}
	l := &leg{name: name, body: bufio.NewScanner(r.Body), close: func() { cancel(); r.Body.Close() }}
	l.body.Buffer(nil, 1<<20)
	if r.StatusCode != http.StatusOK {
		l.body.Scan()
		l.refusal = fmt.Sprint(r.StatusCode, " ", l.body.Text())
	}
	return l
}

// read takes tokens until there are n in all, or until the end; false at the end.
func (l *leg) read(t testing.TB, n int) bool {
	t.Helper()
	for len(l.ids) < n {
		if !l.body.Scan() {
			return false
		}
		data, ok := strings.CutPrefix(l.body.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			l.ended = true
			return false
		}
		var c struct {
			Choices []struct {
				Text     string
				Delta    struct{ Content string }
				TokenIDs []uint32 `json:"token_ids"`
				Finish   string   `json:"finish_reason"`
			}
			Usage *struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		for _, x := range c.Choices {
			l.text.WriteString(x.Text + x.Delta.Content)
			l.ids = append(l.ids, x.TokenIDs...)
			l.finish = x.Finish
		}
		if c.Usage != nil {
			l.prompt, l.cached = c.Usage.Prompt, c.Usage.Details.Cached
		}
	}
	return true
}

// ask is a request's body: prompt is `"prompt":…` or `"messages":…`.
func ask(prompt string, tokens int, more string) string {
	return fmt.Sprintf(`{"model":"m",%s,"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true%s}`, prompt, tokens, more)
}

// carry copies blocks from one engine's memory into another's, as a transport.
func carry(t testing.TB, from, to *seat, src, dst []uint32) {
	t.Helper()
	hold := func(p transport.Pool) *transport.Memory {
		m, err := transport.Hold(p)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	a, b := hold(from.blocks), hold(to.blocks)
	defer a.Release()
	defer b.Release()
	if err := a.Matches(b.Layout); err != nil {
		t.Fatal(err)
	}
	for i := range src {
		for r := range a.Regions {
			copy(b.Part(dst[i], r), a.Part(src[i], r))
		}
	}
}

// move is one live move: a round while the request runs, then the frozen rest.
// spoil may change what arrived.
func move(t testing.TB, from, to *seat, l *leg, id string, spoil func(m *transport.Memory, blocks []uint32)) (length int) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	d, _ := to.blocks.Description()
	t1, err := from.blocks.Table(ctx, l.name, 0)
	must(err)
	dst, err := to.blocks.Reserve(ctx, id, t1.Length+64)
	must(err)
	full := t1.Computed / d.BlockTokens
	carry(t, from, to, t1.Blocks[:full], dst[:full])
	must(to.blocks.Filled(ctx, id, 0, t1.IDs[:full*d.BlockTokens], full*d.BlockTokens))

	t2, err := from.blocks.Freeze(ctx, l.name, full*d.BlockTokens)
	must(err)
	if t2.Generation != t1.Generation || t2.Computed != t2.Length-1 {
		t.Fatalf("frozen: %+v after %+v", t2, t1)
	}
	if dst, err = to.blocks.Reserve(ctx, id, t2.Length+16); err != nil {
		t.Fatal(err)
	}
	carry(t, from, to, t2.Blocks, dst[full:full+len(t2.Blocks)])
	if spoil != nil {
		m, _ := to.blocks.Memory()
		spoil(m, dst[full:full+len(t2.Blocks)])
	}
	must(to.blocks.Filled(ctx, id, full*d.BlockTokens, t2.IDs, t2.Computed))
	return t2.Length
}

// A request hops through four engines and ends where it began; the client's text
// is byte for byte that of the request which stays. Both endpoints, one and two
// ranks; characters that are split by a hop come out whole.
func TestHopsKeepTheText(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		ss := seats(t, 3, ranks, 20)
		for _, api := range []struct{ path, prompt, empty string }{
			{"/v1/completions", `"prompt":"Tell me of the harbor and the 龍"`, `"prompt":[]`},
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"Tell me of the harbor"}]`, `"messages":[]`},
		} {
			t.Run(fmt.Sprint(api.path, " ranks ", ranks), func(t *testing.T) {
				const tokens = 400
				whole := ss[0].open(t, api.path, "whole", ask(api.prompt, tokens, ""))
				whole.read(t, 1<<30)
				whole.close()
				if len(whole.ids) != tokens || !whole.ended {
					t.Fatalf("%d tokens, %q", len(whole.ids), whole.refusal)
				}
				// Where the unmoved text is inside a character.
				v, _ := vocabulary()
				var inside []int
				var d model.Decoder
				for i, id := range whole.ids {
					if out := d.Append(nil, v.Piece(model.Token(id))); len(out) == 0 && i > 20 {
						inside = append(inside, i+1)
					}
				}
				if len(inside) == 0 {
					t.Fatal("no token ends inside a character: the text proves too little")
				}
				cut := inside[0]
				var text strings.Builder
				var ids []uint32
				at, l := ss[0], ss[0].open(t, api.path, "leg#0", ask(api.prompt, tokens, ""))
				prompt := whole.prompt
				for hop, to := range []*seat{ss[1], ss[2], ss[0], ss[1], ss[2]} {
					id := fmt.Sprintf("seller/%d", hop)
					name := fmt.Sprintf("leg#%d", hop+1)
					// The first hop tries to hit the middle of a character: the engine is
					// asked to freeze as the token before arrives.
					want := 30
					if hop == 0 {
						want = cut - 1
					}
					l.read(t, want)
					length := move(t, at, to, l, id, nil)
					l.read(t, length-prompt-len(ids)) // what was generated before the freeze arrives
					if got := prompt + len(ids) + len(l.ids); got != length {
						t.Fatalf("hop %d: the client has %d ids, the engine froze at %d", hop, got, length)
					}
					next := to.open(t, api.path, name, ask(api.empty, tokens-len(ids)-len(l.ids), fmt.Sprintf(`,"kv_transfer_params":{"cascade_reservation":%q,"cascade_prompt":%d}`, id, prompt)))
					if !next.read(t, 1) {
						t.Fatalf("hop %d: no token: %s", hop, next.refusal)
					}
					if err := at.blocks.Drop(t.Context(), l.name); err != nil {
						t.Fatal(err)
					}
					if l.read(t, 1<<30) || l.ended {
						t.Error("a dropped leg ends with its marker")
					}
					l.close()
					text.WriteString(l.text.String())
					ids = append(ids, l.ids...)
					if slices.Contains(inside, len(ids)) {
						t.Logf("hop %d is inside a character", hop)
					}
					at, l = to, next
				}
				before := prompt + len(ids)
				l.read(t, 1<<30)
				l.close()
				text.WriteString(l.text.String())
				ids = append(ids, l.ids...)
				if text.String() != whole.text.String() || !slices.Equal(ids, whole.ids) {
					t.Errorf("moved:\n%s\nunmoved:\n%s", text.String(), whole.text.String())
				}
				if !l.ended || l.finish != "length" && l.finish != "" || l.prompt != before || l.cached != before-1 {
					t.Errorf("the last leg: ended %v, finish %q, prompt %d, cached %d, want prompt %d", l.ended, l.finish, l.prompt, l.cached, before)
				}
			})
		}
	}
}

// One flipped byte in what was handed over gives another text.
func TestAFlippedByteShows(t *testing.T) {
	ss := seats(t, 2, 2, 20)
	const tokens = 120
	whole := ss[0].open(t, "/v1/completions", "w", ask(`"prompt":"once upon a time"`, tokens, ""))
	defer whole.close()
	whole.read(t, 1<<30)
	for _, flip := range []bool{false, true} {
		for region := range 2 {
			name := fmt.Sprint("leg", flip, region)
			l := ss[0].open(t, "/v1/completions", name, ask(`"prompt":"once upon a time"`, tokens, ""))
			l.read(t, 20)
			length := move(t, ss[0], ss[1], l, name, func(m *transport.Memory, blocks []uint32) {
				if flip {
					m.Part(blocks[0], region)[3] ^= 1
				}
			})
			l.read(t, length-whole.prompt)
			next := ss[1].open(t, "/v1/completions", name, ask(`"prompt":[]`, tokens-len(l.ids), `,"kv_transfer_params":{"cascade_reservation":"`+name+`"}`))
			next.read(t, 1<<30)
			if same := slices.Equal(append(l.ids, next.ids...), whole.ids); same == flip {
				t.Errorf("a flipped byte: %v; the same text: %v", flip, same)
			}
			l.close()
			next.close()
		}
	}
}

// The ids alone also continue a text, by either endpoint, and need no messages.
func TestIDsContinueAText(t *testing.T) {
	ss := seats(t, 2, 1, 100)
	whole := ss[0].open(t, "/v1/completions", "w", ask(`"prompt":[5,6,7]`, 80, ""))
	defer whole.close()
	whole.read(t, 1<<30)
	ids, err := json.Marshal(append([]uint32{5, 6, 7}, whole.ids[:40]...))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ path, prompt, more string }{
		{"/v1/completions", `"prompt":` + string(ids), ""},
		{"/v1/chat/completions", `"messages":[]`, `,"kv_transfer_params":{"prompt_token_ids":` + string(ids) + `}`},
		{"/v1/chat/completions", `"messages":[{"role":"user","content":""}]`, `,"kv_transfer_params":{"prompt_token_ids":` + string(ids) + `}`},
	} {
		l := ss[1].open(t, x.path, "l", ask(x.prompt, 40, x.more))
		l.read(t, 1<<30)
		l.close()
		if !slices.Equal(l.ids, whole.ids[40:]) || l.prompt != 43 {
			t.Errorf("%s: %v, want %v; %d prompt tokens; %s", x.path, l.ids, whole.ids[40:], l.prompt, l.refusal)
		}
	}
}

// An engine that dies and comes back is found again, and what was mapped before
// can still be touched.
func TestEngineComesBack(t *testing.T) {
	s := seats(t, 1, 1, 100)[0]
	m, err := transport.Hold(s.blocks)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); err != nil {
		t.Fatal(err)
	}
	s.stop()
	m.Part(0, 0)[0]++
	m.Release()
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); !errors.Is(err, blocks.ErrAway) {
		t.Error(err)
	}
}
