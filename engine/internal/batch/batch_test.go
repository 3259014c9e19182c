package batch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// setup is what a scenario may configure.
type setup struct {
	Blocks, Block, Batch, Tokens int
	NoCache                      bool
	Kappa                        float64
}

func (c setup) scheduler(t testing.TB, m *model.Model) *Scheduler {
	t.Helper()
	pool, err := kv.NewPool(kv.Layout{Blocks: c.Blocks, BlockTokens: c.Block, SlotBytes: 16, Regions: 1})
	testkit.NoError(t, err)
	t.Cleanup(func() { pool.Close() })
	s, err := New(Config{
		Model: m, Pool: pool, MaxBatch: c.Batch, MaxTokens: c.Tokens, NoPrefixCache: c.NoCache,
		// Round coefficients make the parts of a time recognisable.
		Profile: cost.Profile{D0: 1000, D1: 100, D2: 10, D3: 0.001, D4: 1, Kappa: c.Kappa},
	})
	testkit.NoError(t, err)
	return s
}

func newModel(t testing.TB) *model.Model {
	t.Helper()
	v, err := model.NewVocabulary()
	testkit.NoError(t, err)
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

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output).
//
//	config blocks=8 block=4 batch=4 tokens=16 [noCache] [kappa=1]
//	add NAME [prompt=N] [shared=N] [max=N] [salt=N]
//	abort NAME
//	step [N]
//	done              steps until idle; prints only the totals
//	freeze|thaw|drop NAME
//	table NAME [from=N]
//	reserve R tokens=N
//	fill R NAME ids=N computed=N   copies KV bytes of NAME, and adds ids up to N
//	begin R [from=N] ids=N computed=N, end R    a fill with the ids from..ids of a prompt
//	adopt NAME R [max=N] [salt=N]  the text must continue unchanged
//	again NAME OTHER [salt=N]      adds a request whose prompt is all ids of another one
//	release R
func TestScenarios(t *testing.T) {
	m := newModel(t)
	testkit.TestScenarios(t, "testdata", func(t *testing.T) testkit.Player {
		p := &player{
			t: t, model: m, setup: setup{Blocks: 8, Block: 4, Batch: 4, Tokens: 16},
			reservations: map[string]*Reservation{}, names: map[*Sequence]string{}, sequences: map[string]*Sequence{},
		}
		return p.run
	})
}

// player runs one scenario.
type player struct {
	t            *testing.T
	model        *model.Model
	setup        setup
	s            *Scheduler
	reservations map[string]*Reservation
	names        map[*Sequence]string
	sequences    map[string]*Sequence
	filling      *Fill
}

func (p *player) run(words []string) (out []string, err error) {
	if words[0] == "config" {
		return nil, testkit.SetFields(&p.setup, words[1:])
	}
	if p.s == nil {
		p.s = p.setup.scheduler(p.t, p.model)
	}
	named := 1 // words without a value
	for named < len(words) && !strings.Contains(words[named], "=") {
		named++
	}
	args := struct{ Prompt, Shared, Max, Salt, From, Tokens, IDs, Computed int }{Prompt: 4, Max: 4}
	if err := testkit.SetFields(&args, words[named:]); err != nil {
		return nil, err
	}
	command, name := words[0], strings.Join(words[1:min(2, named)], "")
	s, q, r := p.s, p.sequences[name], p.reservations[name]
	switch command {
	case "add", "again":
		ids := prompt(args.Prompt, args.Shared, len(p.sequences)+1)
		if command == "again" {
			ids = p.sequences[words[2]].ids
		}
		q = NewSequence(Request{Prompt: ids, MaxOutput: args.Max, IgnoreEOS: true, Salt: uint64(args.Salt)}, p.setup.Block)
		p.names[q], p.sequences[name] = name, q
		s.Add(q)
		return nil, nil
	case "abort":
		s.Abort(q)
	case "freeze":
		s.Settle()
		err = s.Freeze(q, 1)
	case "thaw":
		s.Thaw(q)
	case "drop":
		err = s.Drop(q)
	case "table":
		tb, err := s.Table(q, args.From)
		if err != nil {
			return []string{err.Error()}, nil
		}
		return []string{fmt.Sprintf("generation %d computed %d length %d prompt %d cached %d ids %d first %d blocks %v", tb.Generation, tb.Computed, tb.Length, tb.Prompt, tb.Cached, len(tb.IDs), tb.First, tb.Blocks)}, nil
	case "reserve":
		if r == nil {
			r = &Reservation{}
			p.reservations[name] = r
		}
		err = s.Reserve(r, args.Tokens)
		out = append(out, fmt.Sprint(r.Blocks()))
	case "fill":
		err = fill(s, r, s, p.sequences[words[2]], args.IDs, args.Computed)
	case "adopt":
		if q, err = s.Adopt(p.reservations[words[2]], Request{MaxOutput: args.Max, IgnoreEOS: true, Salt: uint64(args.Salt)}); err == nil {
			p.names[q], p.sequences[name] = name, q
		}
	case "begin":
		var f *Fill
		if f, err = s.BeginFill(r, args.From, prompt(args.IDs, 0, 1)[args.From:], args.Computed); err == nil {
			p.filling, err = f, f.Read()
		}
	case "end":
		s.EndFill(p.filling)
	case "release":
		s.Release(r)
	case "step":
		n, _ := strconv.Atoi(name)
		for range max(1, n) {
			out = append(out, p.step())
			checkBooks(p.t, s, p.reservations)
		}
		return out, nil
	case "done":
		for !s.Idle() {
			s.Step()
		}
		st := s.Stats()
		return []string{fmt.Sprintf("preemptions=%d prompt=%d generated=%d queries=%d hits=%d used=%d", st.Preemptions, st.PromptTokens, st.GenerationTokens, st.PrefixQueries, st.PrefixHits, st.UsedBlocks)}, nil
	default:
		return nil, errors.New("unknown command")
	}
	if err != nil {
		out = append(out, err.Error())
	}
	st := s.Stats()
	return append(out, fmt.Sprintf("running [%s] waiting [%s] frozen [%s] used %d reserved %d", p.list(s.running), p.list(s.waiting), p.list(s.frozen), st.UsedBlocks, st.Reserved)), nil
}

// step runs an iteration and describes it.
func (p *player) step() string {
	st := p.s.Step()
	events := ""
	for _, e := range st.Events {
		events += " " + p.names[e.Sequence]
		if e.Sequence.Output() == 1 {
			events += fmt.Sprintf("(cached %d)", e.Cached)
		}
		events += map[Finish]string{AtLength: ".length", AtStop: ".stop"}[e.Finish]
	}
	return fmt.Sprintf("n=%d L=%d max=%d prefill=%d t=%.3f |%s | running [%s] waiting [%s] used %d",
		st.Decodes, st.Held, st.Longest, st.Prefill, st.Seconds, events, p.list(p.s.running), p.list(p.s.waiting), p.s.Stats().UsedBlocks)
}

// list names sequences, with their computed positions of all.
func (p *player) list(qs []*Sequence) string {
	var l []string
	for _, q := range qs {
		l = append(l, fmt.Sprintf("%s:%d/%d", p.names[q], q.computed, len(q.ids)))
	}
	return strings.Join(l, " ")
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
		s := setup{Blocks: 12, Block: 4, Batch: 2, Tokens: 64}.scheduler(t, m)
		c := &collector{}
		q := r
		q.StopTokens, q.MinOutput, q.Receiver = []model.Token{full[at]}, x.min, c
		s.Add(NewSequence(q, 4))
		drain(t, s)
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

func benchmark(t testing.TB, n int) *Scheduler {
	s := setup{Blocks: 1 << 17, Block: 16, Batch: 256, Tokens: 8192}.scheduler(t, newModel(t))
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
