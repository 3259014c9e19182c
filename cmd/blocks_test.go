package cmd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
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
	"github.com/cascadeinfer/cascade/policies/policytest"
)

var vocabulary = sync.OnceValues(model.NewVocabulary)

// seat is a real emulator with a real client of its block table.
type seat struct {
	url    string
	blocks *blocks.Client
	config emulator.Config
	stop   func()
}

// seats starts n replicas that can continue each other's requests, with the given context
// length in tokens and the given speed.
func seats(t testing.TB, n, ranks, context int, speed float64) []*seat {
	t.Helper()
	v, err := vocabulary()
	if err != nil {
		t.Fatal(err)
	}
	out := make([]*seat, n)
	for i := range out {
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		client, err := blocks.New(blocks.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		out[i] = &seat{blocks: client, config: emulator.Config{
			Model: "m", Vocabulary: v, Speed: speed, Blocks: dir, TensorParallel: ranks,
			// Different numbers of blocks, so that a block is never at the same place in two replicas.
			KVTokens: policies.Tokens(2*context + 64*i), Context: policies.Tokens(context), MaxBatchedTokens: context,
			Profile: cost.Profile{Name: "p", Unit: "seconds", Ranks: 1, D0: 10e-3, D1: 1e-4, D2: 1e-6, KVBytesPerToken: 131072, KVTokens: 8192, MaxBatch: 16},
		}}
		running(t, client.Run)
		out[i].start(t)
		policytest.WaitFor(t, "the memory", func() bool { _, ok := client.Memory(); return ok })
	}
	return out
}

// start starts a new engine for the seat.
func (s *seat) start(t testing.TB) {
	t.Helper()
	engine, err := emulator.New(s.config)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(engine.Handler())
	s.url = server.URL
	stop := running(t, engine.Run)
	s.stop = sync.OnceFunc(func() {
		stop()
		server.CloseClientConnections()
		server.Close()
	})
	t.Cleanup(s.stop)
}

// running calls run in a goroutine until stop is called or the test ends.
func running(t testing.TB, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// leg is one streaming request at one seat.
type leg struct {
	name  string
	body  *bufio.Scanner
	close func()

	text    strings.Builder
	ids     []uint32
	prompt  int // prompt tokens, from the usage
	cached  int
	finish  string
	ended   bool // the end marker was read
	refusal string
}

// open sends a request. It does not read the stream.
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
	l.body.Buffer(nil, 4<<20) // the first event has the ids of the prompt
	if r.StatusCode != http.StatusOK {
		l.body.Scan()
		l.refusal = fmt.Sprint(r.StatusCode, " ", l.body.Text())
	}
	return l
}

// read reads tokens until there are n in all, or until the end of the stream; false at the
// end.
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

// ask returns the body of a request: prompt is `"prompt":…` or `"messages":…`.
func ask(prompt string, tokens int, more string) string {
	return fmt.Sprintf(`{"model":"m",%s,"max_tokens":%d,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true%s}`, prompt, tokens, more)
}

// carry copies blocks from one engine's memory into another's, as a transport does.
func carry(t testing.TB, from, to *seat, src, dst []uint32) {
	t.Helper()
	hold := func(p transport.Pool) *transport.Memory {
		m, err := transport.HoldHostMemory(p)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	a, b := hold(from.blocks), hold(to.blocks)
	defer a.Release()
	defer b.Release()
	if err := a.CheckCompatible(b.Layout); err != nil {
		t.Fatal(err)
	}
	for i := range src {
		for r := range a.Regions {
			copy(b.RegionBytes(dst[i], r), a.RegionBytes(src[i], r))
		}
	}
}

// moving is a live migration in progress.
type moving struct {
	from, to *seat
	leg, id  string
	dst      []uint32
	first    blocks.Table
	full     int // full blocks copied so far
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// round copies the full blocks that a request has so far, while it runs. spoil may change
// the copied blocks.
func round(t testing.TB, from, to *seat, leg, id string, spoil func(m *transport.Memory, blocks []uint32)) *moving {
	t.Helper()
	m := &moving{from: from, to: to, leg: leg, id: id}
	d, _ := to.blocks.Description()
	var err error
	m.first, err = from.blocks.Table(t.Context(), leg, 0)
	must(t, err)
	m.dst, err = to.blocks.Reserve(t.Context(), id, m.first.Length+640)
	must(t, err)
	m.full = m.first.Computed / d.BlockTokens
	carry(t, from, to, m.first.Blocks[:m.full], m.dst[:m.full])
	if spoil != nil {
		memory, _ := to.blocks.Memory()
		spoil(memory, m.dst[:m.full])
	}
	n := m.full * d.BlockTokens
	must(t, to.blocks.MarkFilled(t.Context(), id, 0, m.first.IDs[:n], n))
	return m
}

// again copies the blocks that became full during the previous round.
func (m *moving) again(t testing.TB) {
	t.Helper()
	d, _ := m.to.blocks.Description()
	from := m.full * d.BlockTokens
	table, err := m.from.blocks.Table(t.Context(), m.leg, from)
	must(t, err)
	full := table.Computed / d.BlockTokens
	n := full - m.full
	m.dst, err = m.to.blocks.Reserve(t.Context(), m.id, table.Length+640)
	must(t, err)
	carry(t, m.from, m.to, table.Blocks[:n], m.dst[m.full:full])
	must(t, m.to.blocks.MarkFilled(t.Context(), m.id, from, table.IDs[:n*d.BlockTokens], full*d.BlockTokens))
	m.full = full
}

// rest freezes the request and copies the remaining blocks.
func (m *moving) rest(t testing.TB) (length int) {
	t.Helper()
	last := m.freeze(t)
	m.finish(t, last)
	return last.Length
}

func (m *moving) freeze(t testing.TB) blocks.Table {
	t.Helper()
	d, _ := m.to.blocks.Description()
	last, err := m.from.blocks.Freeze(t.Context(), m.leg, m.full*d.BlockTokens)
	must(t, err)
	if last.Generation != m.first.Generation || last.Computed != last.Length-1 {
		t.Fatalf("frozen: %+v after %+v", last, m.first)
	}
	return last
}

func (m *moving) finish(t testing.TB, last blocks.Table) {
	t.Helper()
	d, _ := m.to.blocks.Description()
	if d.BlocksFor(last.Length) > len(m.dst) {
		var err error
		m.dst, err = m.to.blocks.Reserve(t.Context(), m.id, last.Length)
		must(t, err)
	}
	carry(t, m.from, m.to, last.Blocks, m.dst[m.full:m.full+len(last.Blocks)])
	must(t, m.to.blocks.MarkFilled(t.Context(), m.id, m.full*d.BlockTokens, last.IDs, last.Computed))
}

// unmoved runs a request to its end on one seat, to compare a migrated request with. It can
// be called afterwards, when the length of the migrated one is known.
func unmoved(t testing.TB, s *seat, path, prompt string, tokens int) *leg {
	t.Helper()
	l := s.open(t, path, "unmoved", ask(prompt, tokens, ""))
	defer l.close()
	if l.read(t, 1<<30); len(l.ids) != tokens || !l.ended {
		t.Fatalf("%d tokens of %d: %q", len(l.ids), tokens, l.refusal)
	}
	return l
}

// TestHopsKeepTheText migrates a request through four engines, back to the first, and
// checks that the client's text is byte for byte that of a request that is not migrated.
// It covers both endpoints, and one and two ranks.
func TestHopsKeepTheText(t *testing.T) {
	fast := seats(t, 1, 1, 4096, 1000)[0]
	for _, ranks := range []int{1, 2} {
		ss := seats(t, 3, ranks, 4096, 2) // slow enough for the hops to finish before the text does
		for _, api := range []struct{ path, prompt, empty string }{
			{"/v1/completions", `"prompt":"Tell me of the harbor and the 龍"`, `"prompt":[]`},
			{"/v1/chat/completions", `"messages":[{"role":"user","content":"Tell me of the harbor"}]`, `"messages":[]`},
		} {
			t.Run(fmt.Sprint(api.path, " ranks ", ranks), func(t *testing.T) {
				prompt := unmoved(t, fast, api.path, api.prompt, 1).prompt
				var text strings.Builder
				var ids []uint32
				at, l := ss[0], ss[0].open(t, api.path, "leg#0", ask(api.prompt, 4000, ""))
				for hop, to := range []*seat{ss[1], ss[2], ss[0], ss[1], ss[2]} {
					id := fmt.Sprintf("%s/%d", t.Name(), hop)
					name := fmt.Sprintf("leg#%d", hop+1)
					l.read(t, 8)
					length := round(t, at, to, l.name, id, nil).rest(t)
					l.read(t, length-prompt-len(ids)) // the tokens generated before the freeze
					if got := prompt + len(ids) + len(l.ids); got != length {
						t.Fatalf("hop %d: the client has %d ids, the engine froze at %d", hop, got, length)
					}
					left := 4096 - length // up to the context length, however long a hop took
					if hop == 4 {
						left = 20
					}
					next := to.open(t, api.path, name, ask(api.empty, left, fmt.Sprintf(`,"kv_transfer_params":{"cascade_reservation":%q,"cascade_prompt":%d}`, id, prompt)))
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
					at, l = to, next
				}
				before := prompt + len(ids)
				l.read(t, 1<<30)
				l.close()
				text.WriteString(l.text.String())
				ids = append(ids, l.ids...)
				whole := unmoved(t, fast, api.path, api.prompt, len(ids))
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

// TestAFlippedByteShows checks that one flipped byte in the copied blocks changes the text.
func TestAFlippedByteShows(t *testing.T) {
	fast := seats(t, 1, 1, 4096, 1000)[0]
	ss := seats(t, 2, 2, 4096, 2)
	const prompt = `"prompt":"once upon a time"`
	given := unmoved(t, fast, "/v1/completions", prompt, 1).prompt
	for _, flip := range []bool{false, true} {
		for region := range 2 {
			name := fmt.Sprint("leg", flip, region)
			l := ss[0].open(t, "/v1/completions", name, ask(prompt, 3000, ""))
			l.read(t, 20)
			length := round(t, ss[0], ss[1], name, name, func(m *transport.Memory, blocks []uint32) {
				if flip {
					m.RegionBytes(blocks[0], region)[3] ^= 1
				}
			}).rest(t)
			l.read(t, length-given)
			next := ss[1].open(t, "/v1/completions", name, ask(`"prompt":[]`, 20, `,"kv_transfer_params":{"cascade_reservation":"`+name+`"}`))
			next.read(t, 1<<30)
			got := append(l.ids, next.ids...)
			if same := slices.Equal(got, unmoved(t, fast, "/v1/completions", prompt, len(got)).ids); same == flip {
				t.Errorf("a flipped byte: %v; the same text: %v", flip, same)
			}
			l.close()
			next.close()
		}
	}
}

// TestIDsContinueAText checks that both endpoints continue a text from its token IDs alone,
// without messages.
func TestIDsContinueAText(t *testing.T) {
	ss := seats(t, 2, 1, 4096, 100)
	whole := unmoved(t, ss[0], "/v1/completions", `"prompt":[5,6,7]`, 80)
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

// TestACharacterIsHandedOverWhole migrates a request in the middle of a character. It thaws
// and freezes the request until it stops at such a place.
func TestACharacterIsHandedOverWhole(t *testing.T) {
	fast, ss := seats(t, 1, 1, 4096, 1000)[0], seats(t, 2, 1, 4096, 1)
	v, err := vocabulary()
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 4000
	for attempt := range 5 {
		name := fmt.Sprint("leg", attempt)
		l := ss[0].open(t, "/v1/completions", name, ask(`"prompt":[1,2,3]`, tokens, ""))
		defer l.close()
		l.read(t, 1)
		inside := false
		var at blocks.Table
		for !inside && at.Length < 3+tokens-20 {
			must(t, ss[0].blocks.Thaw(t.Context(), name))
			at, err = ss[0].blocks.Freeze(t.Context(), name, 3)
			must(t, err)
			var d model.Decoder
			for _, id := range at.IDs {
				inside = len(d.Append(nil, v.Piece(model.Token(id)))) == 0
			}
		}
		if !inside {
			continue
		}
		length := round(t, ss[0], ss[1], name, name, nil).rest(t)
		l.read(t, length-3)
		next := ss[1].open(t, "/v1/completions", name, ask(`"prompt":[]`, 20, `,"kv_transfer_params":{"cascade_reservation":"`+name+`"}`))
		defer next.close()
		next.read(t, 1<<30)
		whole := unmoved(t, fast, "/v1/completions", `"prompt":[1,2,3]`, length-3+20)
		if got, want := l.text.String()+next.text.String(), whole.text.String(); got != want || strings.Contains(want, "\ufffd") {
			t.Errorf("moved:\n%s\nunmoved:\n%s", got, want)
		}
		return
	}
	t.Error("the request was never caught inside a character")
}

// TestEngineComesBack checks that the client finds an engine again after it was restarted,
// and that memory mapped before can still be accessed.
func TestEngineComesBack(t *testing.T) {
	s := seats(t, 1, 1, 4096, 100)[0]
	m, err := transport.HoldHostMemory(s.blocks)
	must(t, err)
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); err != nil {
		t.Fatal(err)
	}
	s.stop()
	policytest.WaitFor(t, "the loss of the memory", func() bool { _, ok := s.blocks.Memory(); return !ok })
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); !errors.Is(err, blocks.ErrUnavailable) {
		t.Error(err)
	}
	m.RegionBytes(0, 0)[0]++ // the memory outlives the engine
	m.Release()
	policytest.WaitFor(t, "the release of the memory", func() bool { // Hold fails once the client has released the memory as well
		held := m.Hold()
		if held {
			m.Release()
		}
		return !held
	})
	s.start(t)
	policytest.WaitFor(t, "the memory of the new session", func() bool { _, ok := s.blocks.Memory(); return ok })
	if again, _ := s.blocks.Memory(); again == m {
		t.Error("the engine that came back has the old one's memory")
	}
	// The new engine does not know the reservation, which can be made again.
	if err := s.blocks.MarkFilled(t.Context(), "r", 0, []uint32{1}, 0); !errors.Is(err, blocks.ErrNotFound) {
		t.Error(err)
	}
	if _, err := s.blocks.Reserve(t.Context(), "r", 100); err != nil {
		t.Error(err)
	}
}

// TestBlocksErrors checks the errors for exhausted blocks and unknown requests.
func TestBlocksErrors(t *testing.T) {
	s := seats(t, 1, 1, 4096, 1)[0]
	ctx := t.Context()
	for i := range 2 {
		if _, err := s.blocks.Reserve(ctx, fmt.Sprint(i), 4096); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.blocks.Reserve(ctx, "more", 64); !errors.Is(err, blocks.ErrFull) {
		t.Error(err)
	}
	must(t, s.blocks.Release(ctx, "1"))
	must(t, s.blocks.Release(ctx, "1"))
	if _, err := s.blocks.Table(ctx, "nobody", 0); !errors.Is(err, blocks.ErrNotFound) {
		t.Error(err)
	}
	l := make(chan *leg)
	go func() { l <- s.open(t, "/v1/completions", "a", ask(`"prompt":[1,2,3]`, 4000, "")) }()
	for { // until its prompt is computed
		_, err := s.blocks.Freeze(ctx, "a", 0)
		if err == nil {
			break
		}
		if !errors.Is(err, blocks.ErrNotFound) && !errors.Is(err, blocks.ErrNotComputed) {
			t.Fatal(err)
		}
	}
	(<-l).close()
	policytest.WaitFor(t, "the end of the request", func() bool { return errors.Is(s.blocks.Thaw(ctx, "a"), blocks.ErrNotFound) })
}

// BenchmarkHandover measures the engines' part of a live migration, from the moment
// the request is frozen to the first token at the target: it must not grow with the
// length. The source is paced, so that it does not run ahead. So is the target, whose
// iteration of 10 µs is part of the result: without a pause it would generate all
// requested tokens and free their blocks before the client reads the first token.
func BenchmarkHandover(b *testing.B) {
	for _, n := range []int{256, 8192, 131_072} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			from, to := seats(b, 1, 1, 1<<18, 20)[0], seats(b, 1, 1, 1<<18, 1000)[0]
			prompt := strings.Repeat("7,8,9,", n/3) + "7"
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				name := fmt.Sprint("leg", i)
				l := from.open(b, "/v1/completions", name, ask(`"prompt":[`+prompt+`]`, 100_000, ""))
				if !l.read(b, 1) {
					b.Fatal(l.refusal)
				}
				move := round(b, from, to, name, name, nil)
				move.again(b) // so that the rest is equally small at any length
				last := move.freeze(b)
				b.StartTimer()
				start := time.Now()
				move.finish(b, last)
				next := to.open(b, "/v1/completions", name, ask(`"prompt":[]`, 300, `,"kv_transfer_params":{"cascade_reservation":"`+name+`"}`))
				if !next.read(b, 1) {
					b.Fatal(next.refusal)
				}
				took = append(took, time.Since(start))
				b.StopTimer()
				l.close()
				next.read(b, 1<<30)
				next.close()
				b.StartTimer()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}

// TestHandoverAllocates checks that between the freeze and the first token at the target,
// neither the token IDs of the request nor any other data with an entry per token is
// copied. The process allocates some hundred kilobytes meanwhile (HTTP, engines, the
// runtime), so the lengths of the compared requests differ by far more: a byte for each
// token of the longer one is half a megabyte, a copy of its IDs two.
func TestHandoverAllocates(t *testing.T) {
	const (
		short, long = 256, 1 << 19
		tries       = 8         // of each length, in turn; the minimum counts
		bound       = 256 << 10 // half a byte for each token
	)
	from, to := seats(t, 1, 1, 1<<20, 20)[0], seats(t, 1, 1, 1<<20, 1000)[0]
	least := map[int]uint64{short: math.MaxUint64, long: math.MaxUint64}
	for i := range tries {
		for n := range least {
			least[n] = min(least[n], handover(t, from, to, fmt.Sprint("leg", n, "#", i), n))
		}
	}
	t.Logf("bytes allocated from the freeze to the first token: %d of %d tokens, %d of %d", least[short], short, least[long], long)
	if least[long] > least[short]+bound {
		t.Errorf("%d bytes are allocated where a request of %d tokens stands still, %d for one of %d", least[long], long, least[short], short)
	}
}

// handover migrates a request of n tokens and returns how many bytes the process allocated
// between the freeze and the first token.
func handover(t *testing.T, from, to *seat, name string, n int) uint64 {
	t.Helper()
	l := from.open(t, "/v1/completions", name, ask(`"prompt":[`+strings.Repeat("7,8,9,", n/3)+`7]`, 100_000, ""))
	defer l.close()
	if !l.read(t, 1) {
		t.Fatal(l.refusal)
	}
	move := round(t, from, to, name, name, nil)
	move.again(t)
	last := move.freeze(t)
	before := allocated()
	move.finish(t, last)
	// One token: each further token generated before the measurement would allocate
	// as well.
	next := to.open(t, "/v1/completions", name, ask(`"prompt":[]`, 1, `,"kv_transfer_params":{"cascade_reservation":"`+name+`"}`))
	defer next.close()
	if !next.read(t, 1) {
		t.Fatal(next.refusal)
	}
	bytes := allocated() - before
	l.close()
	next.read(t, 1<<30)
	return bytes
}

// allocated returns how many bytes the process has allocated so far, exactly: the cheaper
// runtime/metrics counts whole spans of many kilobytes.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
