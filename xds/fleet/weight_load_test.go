package fleet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/loadreport"
)

// TestWeightScenarios runs testdata/weights/*.txt (package datadriven; -rewrite
// rewrites the expected output): a closed loop of replicas whose true work follows
// their weights, some of which report something else.
//
//	fleet N [kv=TOKENS,TOKENS,…]  creates N replicas with these caches in turn
//	utilization PERCENT           the share of all caches that is in use
//	misreport R…|all held=N [running=N] [streams=N]  they report this instead of the truth
//	honest R…|all                 they report the truth again
//	silence R…|all                they report nothing any more
//	proxies silent|reporting      whether the proxies report; they do at first
//	run 30s                       four reports and one of proxies a second; prints the
//	                              weights, the distrusted replicas, and the widest gap
//	                              between the parts of their caches in use
func TestWeightScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/weights", func(t *testing.T, path string) {
		b := &believer{t: t, now: start}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			f := []string{d.Cmd}
			for _, arg := range d.CmdArgs {
				f = append(f, arg.String())
			}
			return b.do(f)
		})
	})
}

// believer is a State and the world that it looks at.
type believer struct {
	t      *testing.T
	state  *State
	now    time.Time
	world  []*actor
	busy   float64
	blind  bool
	jumped string // the first weight that moved by more than a step
}

// actor is a replica as it is, and as it says it is.
type actor struct {
	policies.Replica
	work    float64 // tokens
	lie     *policies.Load
	streams int // in the lie
	silent  bool
	weight  uint32
}

// tokensEach is the length of every request of the world.
const tokensEach = 2000

func (b *believer) do(f []string) string {
	switch f[0] {
	case "fleet":
		b.begin(f[1:])
	case "utilization":
		n, err := strconv.Atoi(f[1])
		if err != nil {
			b.t.Fatal(err)
		}
		b.busy = float64(n) / 100
	case "proxies":
		b.blind = f[1] == "silent"
	case "misreport", "honest", "silence":
		words := f[1:]
		for _, a := range b.world {
			if !slices.Contains(words, string(a.ID)) && !slices.Contains(words, "all") {
				continue
			}
			a.lie, a.streams, a.silent = nil, 0, f[0] == "silence"
			if f[0] == "misreport" {
				a.lie = new(policies.Load)
				for _, w := range words {
					if n, ok := strings.CutPrefix(w, "held="); ok {
						v, _ := strconv.ParseInt(n, 10, 64)
						a.lie.Held = policies.Tokens(v)
					}
					if n, ok := strings.CutPrefix(w, "running="); ok {
						a.lie.Running, _ = strconv.Atoi(n)
					}
					if n, ok := strings.CutPrefix(w, "streams="); ok {
						a.streams, _ = strconv.Atoi(n)
					}
				}
			}
		}
	case "run":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			b.t.Fatal(err)
		}
		for end := b.now.Add(d); b.now.Before(end); {
			b.second()
		}
		return b.tell()
	default:
		b.t.Fatalf("unknown command %q", f)
	}
	return ""
}

func (b *believer) begin(words []string) {
	n, err := strconv.Atoi(words[0])
	if err != nil {
		b.t.Fatal(err)
	}
	caches := []policies.Tokens{400_000}
	if len(words) > 1 {
		caches = nil
		for c := range strings.SplitSeq(strings.TrimPrefix(words[1], "kv="), ",") {
			v, _ := strconv.ParseInt(c, 10, 64)
			caches = append(caches, policies.Tokens(v))
		}
	}
	rules := testRules(PolicyRoundRobin)
	rules.Models[0].Context = 32768
	if b.state, err = NewState(rules); err != nil {
		b.t.Fatal(err)
	}
	var list []policies.Replica
	b.world = nil
	for i := range n {
		r := scenarioReplica(fmt.Sprintf("r%d", i))
		r.Capacity.KV = caches[i%len(caches)]
		list = append(list, r)
		b.world = append(b.world, &actor{Replica: r, weight: Neutral})
	}
	b.busy = 0.5
	settleState(b.state, b.now, Replicas{list})
}

// second lets work flow to where the weights send it: a tenth of it ends, and as
// much and what is missing comes anew.
func (b *believer) second() {
	var caches, work, weights float64
	for _, a := range b.world {
		a.work *= 0.9
		caches += float64(a.Capacity.KV)
		work += a.work
		weights += float64(a.weight)
	}
	come := max(b.busy*caches-work, 0)
	for _, a := range b.world {
		a.work += come * float64(a.weight) / weights
	}
	for quarter := range 4 {
		b.now = b.now.Add(250 * time.Millisecond)
		for _, a := range b.world {
			if a.silent {
				continue
			}
			n := int(a.work / tokensEach)
			r := Report{Replica: a.ID, Model: "m", EngineReady: true, Load: policies.Load{Running: n, Held: policies.Tokens(a.work)}}
			r.Settling.Streams = n
			if a.lie != nil {
				r.Load, r.Settling.Streams = *a.lie, a.streams
			}
			settleState(b.state, b.now, Reported{r})
		}
		if quarter == 3 && !b.blind {
			seen := make(map[netip.AddrPort]loadreport.Seen)
			for _, a := range b.world {
				seen[netip.MustParseAddrPort(a.Address)] = loadreport.Seen{Requests: int(a.work / tokensEach)}
			}
			settleState(b.state, b.now, Proxied{seen})
		}
		settleState(b.state, b.now, Tick{})
		b.look()
	}
}

// look takes the weights, none of which may have moved by more than a step.
func (b *believer) look() {
	for _, r := range b.state.Snapshot(b.now).Models[0].Replicas {
		a := b.world[slices.IndexFunc(b.world, func(a *actor) bool { return a.ID == r.ID })]
		if d := stepOf(a.weight) - stepOf(r.Weight); (d > 1 || d < -1) && b.jumped == "" {
			b.jumped = fmt.Sprintf("%s moved from %d to %d\n", r.ID, a.weight, r.Weight)
		}
		a.weight = r.Weight
	}
}

func (b *believer) tell() string {
	out := b.jumped
	low, high := math.Inf(1), 0.0
	count := make(map[uint32]int)
	for _, a := range b.world {
		use := a.work / float64(a.Capacity.KV)
		low, high = min(low, use), max(high, use)
		count[a.weight]++
	}
	var weights []string
	for _, s := range steps {
		if n := count[s]; n > 0 {
			weights = append(weights, fmt.Sprintf("%d at %d", n, s))
		}
	}
	out += fmt.Sprintf("weights: %s; use %.0f to %.0f %%\n", strings.Join(weights, ", "), 100*low, 100*high)
	distrusted := 0
	for _, r := range b.state.Snapshot(b.now).Models[0].Replicas {
		if r.Figure.Distrusted != "" {
			if distrusted++; distrusted <= 2 {
				out += fmt.Sprintf("%s at %d: %s\n", r.ID, r.Weight, r.Note)
			}
		}
	}
	if distrusted > 2 {
		out += fmt.Sprintf("%d are distrusted\n", distrusted)
	}
	return out
}

// TestBeliefIsBounded: whatever replicas and proxies say, and whenever, a weight
// moves by one step a second at most and stays between the first and the last.
func TestBeliefIsBounded(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := testState(t, PolicyRoundRobin)
		now := start
		last := make(map[policies.ReplicaID]uint32)
		moved := make(map[policies.ReplicaID]time.Time)
		for range 600 {
			now = now.Add(time.Duration(rng.Int64N(int64(600 * time.Millisecond))))
			switch rng.IntN(3) {
			case 0:
				r := Report{Replica: policies.ReplicaID(fmt.Sprintf("r%d", rng.IntN(4))), Model: "m", EngineReady: rng.IntN(20) > 0, LoadBounded: rng.IntN(9) == 0}
				r.Load = policies.Load{Running: rng.IntN(300), Held: policies.Tokens(rng.Int64N(1<<40) >> rng.IntN(40)), Promised: policies.Tokens(rng.Int64N(1<<40) >> rng.IntN(40))}
				r.Settling.Streams = rng.IntN(300)
				settleState(s, now, Reported{r})
			case 1:
				seen := make(map[netip.AddrPort]loadreport.Seen)
				for p := range 4 {
					seen[netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", 1000+p))] = loadreport.Seen{Requests: rng.IntN(500), Answers: rng.Uint64N(2), Share: rng.Float64()}
				}
				settleState(s, now, Proxied{seen})
			default:
				settleState(s, now, Tick{})
			}
			for _, r := range s.Snapshot(now).Models[0].Replicas {
				was, ok := last[r.ID]
				last[r.ID] = r.Weight
				if !ok || was == r.Weight {
					continue
				}
				if d := stepOf(was) - stepOf(r.Weight); d > 1 || d < -1 || steps[stepOf(r.Weight)] != r.Weight {
					t.Fatalf("seed %d: %s moves from %d to %d", seed, r.ID, was, r.Weight)
				}
				if at, ok := moved[r.ID]; ok && now.Sub(at) < weighEvery {
					t.Fatalf("seed %d: %s moves twice within %v", seed, r.ID, now.Sub(at))
				}
				moved[r.ID] = now
			}
		}
	}
}

// TestWeightsEvenOutUse: replicas with caches of other sizes come to use the same
// part of them, and a stage of two kinds of word compares them.
func TestWeightsEvenOutUse(t *testing.T) {
	got := settle(t, []Loaded{
		{ID: "big", Work: 200_000, KV: 400_000, Fresh: true, Weight: Neutral},
		{ID: "small", Work: 50_000, KV: 100_000, Fresh: true, Weight: Neutral},
	})
	// The ideal is four to one, 160 and 40.
	if got["big"] != 141 || got["small"] != 35 && got["small"] != 50 {
		t.Errorf("equal use: %v", got)
	}
	// Ten requests of 5,000 tokens are as much as 50,000 tokens.
	got = settle(t, []Loaded{
		{ID: "a", Work: 50_000, Requests: 10, KV: 400_000, Fresh: true, Weight: Neutral},
		{ID: "b", Work: 15_000, Counted: true, Requests: 10, KV: 400_000, Fresh: true, Weight: Neutral},
	})
	if got["a"] != Neutral || got["b"] != Neutral {
		t.Errorf("two kinds of word: %v", got)
	}
	got = settle(t, []Loaded{
		{ID: "a", Work: 60_000, KV: 400_000, Fresh: true, Weight: Neutral},
		{ID: "b", KV: 400_000, Drift: true, Weight: 400},
		{ID: "c", KV: 400_000, Weight: 25},
	})
	if got["b"] != Neutral || got["c"] != 25 {
		t.Errorf("drifting: %v", got)
	}
}
