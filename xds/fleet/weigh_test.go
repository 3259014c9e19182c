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
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/loadreport"
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
		b := &loop{t: t, now: start}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			f := []string{d.Cmd}
			for _, arg := range d.CmdArgs {
				f = append(f, arg.String())
			}
			return b.do(f)
		})
	})
}

// loop is a State and the replicas whose loads follow its weights.
type loop struct {
	t        *testing.T
	state    *State
	now      time.Time
	replicas []*actor
	busy     float64
	blind    bool
	jumped   string // the first weight that changed by more than a step
}

// actor is a replica with its true load and the load that it reports.
type actor struct {
	policies.Replica
	work    float64 // tokens
	lie     *policies.Load
	streams int // in a false report
	silent  bool
	weight  uint32
}

// tokensEach is the length of every request.
const tokensEach = 2000

// stepIndex returns the index of a weight in balance.WeightSteps, or -1.
func stepIndex(weight uint32) int { return slices.Index(balance.WeightSteps[:], weight) }

func (b *loop) do(f []string) string {
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
		for _, a := range b.replicas {
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
		return b.print()
	default:
		b.t.Fatalf("unknown command %q", f)
	}
	return ""
}

func (b *loop) begin(words []string) {
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
	b.replicas = nil
	for i := range n {
		r := scenarioReplica(fmt.Sprintf("r%d", i))
		r.Capacity.KV = caches[i%len(caches)]
		list = append(list, r)
		b.replicas = append(b.replicas, &actor{Replica: r, weight: balance.NeutralWeight})
	}
	b.busy = 0.5
	settleState(b.state, b.now, Replicas{list})
}

// second simulates a second: a tenth of the work ends, and new work arrives in
// proportion to the weights until the utilization is reached.
func (b *loop) second() {
	var caches, work, weights float64
	for _, a := range b.replicas {
		a.work *= 0.9
		caches += float64(a.Capacity.KV)
		work += a.work
		weights += float64(a.weight)
	}
	come := max(b.busy*caches-work, 0)
	for _, a := range b.replicas {
		a.work += come * float64(a.weight) / weights
	}
	for quarter := range 4 {
		b.now = b.now.Add(250 * time.Millisecond)
		for _, a := range b.replicas {
			if a.silent {
				continue
			}
			n := int(a.work / tokensEach)
			r := loadreport.Report{Replica: a.ID, Model: "m", EngineReady: true, Load: policies.Load{Running: n, Held: policies.Tokens(a.work)}}
			r.DrainProgress.Streams = n
			if a.lie != nil {
				r.Load, r.DrainProgress.Streams = *a.lie, a.streams
			}
			settleState(b.state, b.now, Reported{r})
		}
		if quarter == 3 && !b.blind {
			seen := make(map[netip.AddrPort]balance.ProxyReport)
			for _, a := range b.replicas {
				seen[netip.MustParseAddrPort(a.Address)] = balance.ProxyReport{Requests: int(a.work / tokensEach)}
			}
			settleState(b.state, b.now, ProxiesReported{seen})
		}
		settleState(b.state, b.now, Tick{})
		b.readWeights()
	}
}

// readWeights reads the weights, and records the first that changed by more than a
// step.
func (b *loop) readWeights() {
	for _, r := range b.state.Snapshot(b.now).Models[0].Replicas {
		a := b.replicas[slices.IndexFunc(b.replicas, func(a *actor) bool { return a.ID == r.ID })]
		if d := stepIndex(a.weight) - stepIndex(r.Weight); (d > 1 || d < -1) && b.jumped == "" {
			b.jumped = fmt.Sprintf("%s moved from %d to %d\n", r.ID, a.weight, r.Weight)
		}
		a.weight = r.Weight
	}
}

func (b *loop) print() string {
	out := b.jumped
	low, high := math.Inf(1), 0.0
	count := make(map[uint32]int)
	for _, a := range b.replicas {
		use := a.work / float64(a.Capacity.KV)
		low, high = min(low, use), max(high, use)
		count[a.weight]++
	}
	var list []string
	for _, s := range balance.WeightSteps {
		if n := count[s]; n > 0 {
			list = append(list, fmt.Sprintf("%d at %d", n, s))
		}
	}
	out += fmt.Sprintf("weights: %s; use %.0f to %.0f %%\n", strings.Join(list, ", "), 100*low, 100*high)
	distrusted := 0
	for _, r := range b.state.Snapshot(b.now).Models[0].Replicas {
		if r.Estimate.Distrusted != "" {
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

// TestWeightsAreBounded checks that a weight changes by at most one step a second and
// stays between the first and the last step, for all reports of replicas and proxies at
// all times.
func TestWeightsAreBounded(t *testing.T) {
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
				r := loadreport.Report{Replica: policies.ReplicaID(fmt.Sprintf("r%d", rng.IntN(4))), Model: "m", EngineReady: rng.IntN(20) > 0, LoadBounded: rng.IntN(9) == 0}
				r.Load = policies.Load{Running: rng.IntN(300), Held: policies.Tokens(rng.Int64N(1<<40) >> rng.IntN(40)), Promised: policies.Tokens(rng.Int64N(1<<40) >> rng.IntN(40))}
				r.DrainProgress.Streams = rng.IntN(300)
				settleState(s, now, Reported{r})
			case 1:
				seen := make(map[netip.AddrPort]balance.ProxyReport)
				for p := range 4 {
					seen[netip.MustParseAddrPort(fmt.Sprintf("127.0.0.1:%d", 1000+p))] = balance.ProxyReport{Requests: rng.IntN(500), Answers: rng.Uint64N(2), Share: rng.Float64()}
				}
				settleState(s, now, ProxiesReported{seen})
			default:
				settleState(s, now, Tick{})
			}
			for _, r := range s.Snapshot(now).Models[0].Replicas {
				was, ok := last[r.ID]
				last[r.ID] = r.Weight
				if !ok || was == r.Weight {
					continue
				}
				if d := stepIndex(was) - stepIndex(r.Weight); d > 1 || d < -1 || balance.WeightSteps[stepIndex(r.Weight)] != r.Weight {
					t.Fatalf("seed %d: %s moves from %d to %d", seed, r.ID, was, r.Weight)
				}
				if at, ok := moved[r.ID]; ok && now.Sub(at) < duration(balance.WeightInterval) {
					t.Fatalf("seed %d: %s moves twice within %v", seed, r.ID, now.Sub(at))
				}
				moved[r.ID] = now
			}
		}
	}
}
