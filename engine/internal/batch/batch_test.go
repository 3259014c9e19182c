package batch

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

var update = flag.Bool("update", false, "rewrite the expected output of testdata/*.txt")

// setup is what a scenario may configure.
type setup struct {
	blocks, block, batch, tokens int
	cache                        string
	kappa                        float64
}

func (c setup) scheduler(t testing.TB, m *model.Model) *Scheduler {
	t.Helper()
	pool, err := kv.NewPool(kv.Layout{Blocks: c.blocks, BlockTokens: c.block, SlotBytes: 16, Regions: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	prefix := PrefixOn
	if c.cache == "off" {
		prefix = PrefixOff
	}
	s, err := New(Config{
		Model: m, Pool: pool, MaxBatch: c.batch, MaxTokens: c.tokens, Prefix: prefix,
		// Round coefficients make the parts of a time recognisable.
		Profile: cost.Profile{D0: 1000, D1: 100, D2: 10, D3: 0.001, D4: 1, Kappa: c.kappa},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newModel(t testing.TB) *model.Model {
	t.Helper()
	v, err := model.NewVocabulary()
	if err != nil {
		t.Fatal(err)
	}
	return model.New("m", v)
}

// prompt returns n tokens that depend on the seed from position shared on.
func prompt(n, shared, seed int) []model.Token {
	ids := make([]model.Token, n)
	for i := range ids {
		ids[i] = model.Token(1000 + i)
		if i >= shared {
			ids[i] = model.Token(2000 + 997*seed + i)
		}
	}
	return ids
}

// TestScenarios runs testdata/*.txt: commands, a line "----", and their
// output. -update rewrites the second half.
//
//	config blocks=8 block=4 batch=4 tokens=16 [cache=off] [kappa=0.5]
//	add NAME prompt=N [shared=N] [max=N] [min=N] [salt=N]
//	abort NAME
//	step [N]
//	done              steps until idle; prints only the totals
//	freeze|thaw|drop NAME
//	table NAME [from=N]
//	reserve R tokens=N
//	fill R NAME ids=N computed=N   copies KV bytes of NAME, and adds ids up to N
//	adopt NAME R [max=N]           the text must continue unchanged
//	release R
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	m := newModel(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			commands, want, _ := strings.Cut(string(data), "----\n")
			got := run(t, m, commands)
			if *update {
				if err := os.WriteFile(file, []byte(commands+"----\n"+got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func run(t *testing.T, m *model.Model, commands string) string {
	var out strings.Builder
	var s *Scheduler
	c := setup{blocks: 8, block: 4, batch: 4, tokens: 16}
	reservations := make(map[string]*Reservation)
	names := make(map[*Sequence]string)
	byName := make(map[string]*Sequence)
	list := func(qs []*Sequence) string {
		var l []string
		for _, q := range qs {
			l = append(l, fmt.Sprintf("%s:%d/%d", names[q], q.computed, len(q.ids)))
		}
		return strings.Join(l, " ")
	}
	lists := func(err error) {
		if err != nil {
			fmt.Fprintf(&out, "%v | ", err)
		}
		st := s.Stats()
		fmt.Fprintf(&out, "running [%s] waiting [%s] frozen [%s] used %d reserved %d\n", list(s.running), list(s.waiting), list(s.frozen), st.UsedBlocks, st.Reserved)
	}
	for line := range strings.Lines(commands) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		value := func(key string, otherwise int) int {
			for _, f := range fields {
				if v, ok := strings.CutPrefix(f, key+"="); ok {
					n := 0
					if _, err := fmt.Sscan(v, &n); err != nil {
						t.Fatalf("%q: %v", line, err)
					}
					return n
				}
			}
			return otherwise
		}
		if fields[0] != "config" && s == nil {
			s = c.scheduler(t, m)
		}
		step := func() {
			st := s.Step()
			fmt.Fprintf(&out, "n=%d L=%d max=%d prefill=%d t=%.3f |", st.Decodes, st.Held, st.Longest, st.Prefill, st.Seconds)
			for _, e := range st.Events {
				fmt.Fprintf(&out, " %s", names[e.Sequence])
				if e.Sequence.Output() == 1 {
					fmt.Fprintf(&out, "(cached %d)", e.Cached)
				}
				if e.Finish != Unfinished {
					out.WriteString(map[Finish]string{AtLength: ".length", AtStop: ".stop"}[e.Finish])
				}
			}
			fmt.Fprintf(&out, " | running [%s] waiting [%s] used %d\n", list(s.running), list(s.waiting), s.Stats().UsedBlocks)
			checkBooks(t, s, reservations)
		}
		switch fields[0] {
		case "config":
			c.blocks, c.block, c.batch, c.tokens = value("blocks", c.blocks), value("block", c.block), value("batch", c.batch), value("tokens", c.tokens)
			for _, f := range fields {
				if v, ok := strings.CutPrefix(f, "cache="); ok {
					c.cache = v
				}
			}
			c.kappa = float64(value("kappa", 0))
		case "add":
			q := NewSequence(Request{
				Prompt:    prompt(value("prompt", 4), value("shared", 0), len(byName)+1),
				MaxOutput: value("max", 4), MinOutput: value("min", 0), IgnoreEOS: true, Salt: uint64(value("salt", 0)),
			}, c.block)
			names[q], byName[fields[1]] = fields[1], q
			s.Add(q)
		case "abort":
			s.Abort(byName[fields[1]])
			fmt.Fprintf(&out, "running [%s] waiting [%s] used %d\n", list(s.running), list(s.waiting), s.Stats().UsedBlocks)
		case "freeze":
			s.Settle()
			lists(s.Freeze(byName[fields[1]], 1))
		case "thaw":
			s.Thaw(byName[fields[1]])
			lists(nil)
		case "drop":
			lists(s.Drop(byName[fields[1]]))
		case "table":
			tb, err := s.Table(byName[fields[1]], value("from", 0))
			if err != nil {
				fmt.Fprintln(&out, err)
				continue
			}
			fmt.Fprintf(&out, "generation %d computed %d length %d prompt %d cached %d ids %d first %d blocks %v\n", tb.Generation, tb.Computed, tb.Length, tb.Prompt, tb.Cached, len(tb.IDs), tb.First, tb.Blocks)
		case "reserve":
			r := reservations[fields[1]]
			if r == nil {
				r = &Reservation{}
				reservations[fields[1]] = r
			}
			err := s.Reserve(r, value("tokens", 0))
			fmt.Fprintf(&out, "%v ", r.Blocks())
			lists(err)
		case "fill":
			r, q := reservations[fields[1]], byName[fields[2]]
			lists(fill(s, r, s, q, value("ids", 0), value("computed", 0)))
		case "adopt":
			q, err := s.Adopt(reservations[fields[2]], Request{MaxOutput: value("max", 4), IgnoreEOS: true})
			if err == nil {
				names[q], byName[fields[1]] = fields[1], q
			}
			lists(err)
		case "release":
			s.Release(reservations[fields[1]])
			lists(nil)
		case "step":
			n := 1
			if len(fields) > 1 {
				fmt.Sscan(fields[1], &n)
			}
			for range n {
				step()
			}
		case "done":
			for !s.Idle() {
				s.Step()
			}
			st := s.Stats()
			fmt.Fprintf(&out, "preemptions=%d prompt=%d generated=%d queries=%d hits=%d used=%d\n", st.Preemptions, st.PromptTokens, st.GenerationTokens, st.PrefixQueries, st.PrefixHits, st.UsedBlocks)
		default:
			t.Fatalf("unknown command %q", line)
		}
	}
	return out.String()
}

// generateAlone generates without a scheduler; it is the oracle.
func generateAlone(m *model.Model, r Request) []model.Token {
	ids, slot := slices.Clone(r.Prompt), make([]byte, 16)
	var d model.Digest
	for p, t := range ids {
		d = m.Fill(slot, d, t, p)
	}
	for n := 1; n <= r.MaxOutput; n++ {
		open := model.MayEnd
		if r.IgnoreEOS || n <= r.MinOutput {
			open = model.GoesOn
		}
		t := m.Next(d, ids[len(ids)-1], open)
		d = m.Fill(slot, d, t, len(ids))
		ids = append(ids, t)
		if t == model.EndOfText {
			break
		}
	}
	return ids[len(r.Prompt):]
}

type collector struct {
	out []model.Token
	end Finish
}

func (c *collector) Receive(e Event) { c.out, c.end = append(c.out, e.Token), e.Finish }

// Random loads run on random pools: whatever was chunked, cached, evicted, preempted or aborted,
// every text equals the model's own, no token is lost and no block leaks.
func TestTextDependsOnIdsAlone(t *testing.T) {
	m := newModel(t)
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := setup{blocks: 6 + rng.IntN(20), block: 1 + rng.IntN(8), batch: 1 + rng.IntN(6)}
		c.tokens = c.batch + rng.IntN(24)
		if rng.IntN(4) == 0 {
			c.cache = "off"
		}
		s := c.scheduler(t, m)
		room := c.blocks * c.block
		var requests []Request
		got := make(map[int]*collector)
		aborted := make(map[int]bool)
		sequences := make(map[int]*Sequence)
		for i := 0; i < 25 || !s.Idle(); {
			if i < 25 && (s.Idle() || rng.IntN(2) == 0) {
				n := 1 + rng.IntN(room-1)
				r := Request{
					Prompt: prompt(n, rng.IntN(n+1), rng.IntN(3)), MaxOutput: 1 + rng.IntN(room-n),
					IgnoreEOS: rng.IntN(2) == 0, MinOutput: rng.IntN(4), Receiver: &collector{},
				}
				got[i], sequences[i] = r.Receiver.(*collector), NewSequence(r, c.block)
				requests = append(requests, r)
				s.Add(sequences[i])
				i++
			}
			if j := rng.IntN(25); rng.IntN(20) == 0 && sequences[j] != nil {
				s.Abort(sequences[j])
				aborted[j] = got[j].end == Unfinished
			}
			st := s.Step()
			if st.Decodes+int(st.Prefill) > c.tokens || len(s.running) > c.batch {
				t.Fatalf("seed %d: step %+v exceeds %+v", seed, st.Iteration, c)
			}
			for _, e := range st.Events {
				e.Sequence.Receiver.Receive(e)
			}
		}
		if st := s.Stats(); st.UsedBlocks != 0 {
			t.Fatalf("seed %d: %d blocks leaked", seed, st.UsedBlocks)
		}
		for i, r := range requests {
			want := generateAlone(m, r)
			if aborted[i] {
				want = want[:min(len(want), len(got[i].out))]
			} else if got[i].end == Unfinished {
				t.Fatalf("seed %d: request %d never ended", seed, i)
			}
			if !slices.Equal(got[i].out, want) {
				t.Fatalf("seed %d: request %d %+v:\n got %v\nwant %v", seed, i, c, got[i].out, want)
			}
		}
	}
}

// A flipped byte in any cached block changes the text of the sequences that attend to it.
func TestWrongByteChangesText(t *testing.T) {
	m := newModel(t)
	r := Request{Prompt: prompt(33, 0, 1), MaxOutput: 6, IgnoreEOS: true}
	want := generateAlone(m, r)
	for at := range 32 * 16 {
		s := setup{blocks: 12, block: 4, batch: 2, tokens: 64}.scheduler(t, m)
		drain := func() []model.Token {
			got := &collector{}
			r.Receiver = got
			s.Add(NewSequence(r, 4))
			for !s.Idle() {
				for _, e := range s.Step().Events {
					got.Receive(e)
				}
			}
			return got.out
		}
		if !slices.Equal(drain(), want) {
			t.Fatal("the first run differs from the model")
		}
		position := at / 16
		block, ok := s.blocks.Find(NewSequence(r, 4).chain[position/4])
		if !ok {
			t.Fatalf("position %d is not cached", position)
		}
		s.Pool.Slot(block, position%4)[at%16] ^= 0x10
		if slices.Equal(drain(), want) {
			t.Errorf("a wrong byte %d at position %d changes nothing", at%16, position)
		}
		if s.Stats().PrefixHits != 32 {
			t.Fatalf("prefix hits %d, want 32: the bytes were not attended to", s.Stats().PrefixHits)
		}
		s.Pool.Close()
	}
}

func TestStopTokens(t *testing.T) {
	m := newModel(t)
	r := Request{Prompt: prompt(5, 0, 1), MaxOutput: 20, IgnoreEOS: true}
	full := generateAlone(m, r)
	at := 5
	for slices.Contains(full[:at], full[at]) || slices.Contains(full[at+1:], full[at]) {
		at++
	}
	for _, x := range []struct {
		min  int
		want int // tokens generated
	}{{0, at + 1}, {at, at + 1}, {at + 1, 20}} {
		s := setup{blocks: 12, block: 4, batch: 2, tokens: 64}.scheduler(t, m)
		c := &collector{}
		q := r
		q.StopTokens, q.MinOutput = []model.Token{full[at]}, x.min
		s.Add(NewSequence(q, 4))
		for !s.Idle() {
			for _, e := range s.Step().Events {
				c.Receive(e)
			}
		}
		wantEnd := AtStop
		if x.want == 20 {
			wantEnd = AtLength
		}
		if len(c.out) != x.want || c.end != wantEnd {
			t.Errorf("min %d: %d tokens, end %v, want %d, %v", x.min, len(c.out), c.end, x.want, wantEnd)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config{{}, {Model: newModel(t), Pool: &kv.Pool{}, MaxBatch: 4, MaxTokens: 3}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

// BenchmarkStep256 measures the emulator's own cost: with 256 running sequences it must stay far
// below the emulated time, about 20 µs per token at full speed.
func BenchmarkStep256(b *testing.B) {
	s := benchmark(b, 256)
	tokens := 0
	for b.Loop() {
		tokens += len(s.Step().Events)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(tokens), "ns/token")
	b.ReportAllocs()
}

func benchmark(t testing.TB, n int) *Scheduler {
	s := setup{blocks: 1 << 17, block: 16, batch: 256, tokens: 8192}.scheduler(t, newModel(t))
	for i := range n {
		s.Add(NewSequence(Request{Prompt: prompt(1000, 0, i), MaxOutput: 1 << 30, IgnoreEOS: true}, 16))
	}
	for s.Stats().Running < n || s.Stats().GenerationTokens < uint64(2*n) {
		s.Step()
	}
	return s
}

func TestStepAllocations(t *testing.T) {
	s := benchmark(t, 64)
	// Block lists, hash chains and id slices grow occasionally; everything else is reused.
	if got := testing.AllocsPerRun(200, func() { s.Step() }); got > 64*0.1 {
		t.Errorf("%v allocations per iteration of 64 sequences", got)
	}
}
