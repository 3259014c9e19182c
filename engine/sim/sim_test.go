package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// requests is a trace.Source.
type requests []trace.Request

func (r *requests) Next() (trace.Request, error) {
	if len(*r) == 0 {
		return trace.Request{}, io.EOF
	}
	first := (*r)[0]
	*r = (*r)[1:]
	return first, nil
}

// profile has round coefficients.
var profile = cost.Profile{
	Name: "test", Unit: "seconds", D0: 0.01, D1: 1e-4, D2: 1e-5, D3: 1e-10, D4: 1e-7,
	KVBytesPerToken: 1000, KVTokens: 100_000, MaxBatch: 64, Ranks: 1,
}

// run simulates, and returns the records in the order of their ends.
func run(t testing.TB, c Config, source trace.Source) (Result, []replay.Record) {
	t.Helper()
	c.Source = source
	var records []replay.Record
	c.Record = func(r *replay.Record) { records = append(records, *r) }
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Policy == "" {
		c.Policy = "round-robin"
	}
	if c.Profile.Name == "" {
		c.Profile = profile
	}
	s, err := New(c)
	testkit.NoError(t, err)
	result, err := s.Run(t.Context())
	testkit.NoError(t, err)
	return result, records
}

// checkEnds checks that each request has ended once, with all its tokens or with one of these failures.
func checkEnds(t *testing.T, what string, all []trace.Request, records []replay.Record, failures ...replay.Kind) {
	t.Helper()
	seen := map[int]bool{}
	for _, r := range records {
		if seen[r.Index] || r.Error == "" && r.Tokens != int64(all[r.Index].Output) || r.Error != "" && !slices.Contains(failures, r.Error) {
			t.Errorf("%s: %+v", what, r)
		}
		seen[r.Index] = true
	}
	if len(seen) != len(all) {
		t.Errorf("%s: %d of %d requests ended", what, len(seen), len(all))
	}
}

// checkIdle checks that no request and no transfer is left, and no block but those that are reserved for good.
func checkIdle(t *testing.T, what string, s *Sim) {
	t.Helper()
	for _, r := range s.replicas {
		x := r.scheduler.Stats()
		if x.UsedBlocks != x.Reserved || x.Running+x.Waiting+x.Frozen != 0 || len(r.resident)+len(r.transfers)+r.sending+r.receiving != 0 {
			t.Errorf("%s, replica %d: %+v, %d residents, %d transfers", what, r.index, x, len(r.resident), len(r.transfers))
		}
	}
}

func near(a, b, by float64) bool { return math.Abs(a-b) <= by*math.Abs(b) }

// mix draws the mix of BenchmarkRun for a number of replicas: prompts of mean 512, answers of
// mean 128, both exponential.
func mix(n int, rate float64, seed uint64) trace.Source {
	rng := rand.New(rand.NewPCG(seed, 0))
	left, at := n, 0.0
	return sourceFunc(func() (trace.Request, error) {
		if left == 0 {
			return trace.Request{}, io.EOF
		}
		left--
		at += rng.ExpFloat64() / rate
		r := trace.Request{At: time.Duration(at * 1e9)}
		r.Input, r.Output = exponential(rng, 512), exponential(rng, 128)
		if rng.IntN(2) == 0 {
			for i := range (r.Input + trace.BlockTokens - 1) / trace.BlockTokens {
				r.Prefix = append(r.Prefix, uint64(i)<<32|rng.Uint64N(40))
			}
		}
		return r, nil
	})
}

// exponential draws a length.
func exponential(rng *rand.Rand, mean float64) policies.Tokens {
	return 1 + policies.Tokens(rng.ExpFloat64()*(mean-0.5))
}

type sourceFunc func() (trace.Request, error)

func (f sourceFunc) Next() (trace.Request, error) { return f() }

// TestDeterminism runs every policy twice with one seed, and once with another: equal bytes and
// different ones.
func TestDeterminism(t *testing.T) {
	for _, name := range Policies() {
		n := 1500
		if variants[name].paper && name != Paper {
			n = 700 // enough to show that its part is there
		}
		var outputs [3][]byte
		for i, seed := range []uint64{1, 1, 2} {
			c := Config{
				Policy: name, Replicas: 7, Proxies: 3, Seed: seed, KVTokens: 4000, ReportDelay: 50 * time.Millisecond, Attention: cost.Stress,
				Faults: []Fault{{Kind: Fail, Replica: 2, At: 3 * time.Second, Until: 6 * time.Second}, {Kind: Drain, Replica: 4, At: 4 * time.Second}},
			}
			if movesRequests(name) {
				c.Proxies = 1
			}
			result, records := run(t, c, mix(n, 200, seed))
			var out bytes.Buffer
			testkit.NoError(t, errors.Join(json.NewEncoder(&out).Encode(result), json.NewEncoder(&out).Encode(records)))
			outputs[i] = out.Bytes()
			if result.Completed+result.Failed() != n || result.Engines.Preemptions == 0 {
				t.Errorf("%s: %d completed, %d failed, %d preemptions", name, result.Completed, result.Failed(), result.Engines.Preemptions)
			}
		}
		if !bytes.Equal(outputs[0], outputs[1]) {
			t.Errorf("%s: one seed, two results", name)
		}
		if bytes.Equal(outputs[0], outputs[2]) {
			t.Errorf("%s: two seeds, one result", name)
		}
	}
}

// TestFaults follows requests through a failure and a drain.
func TestFaults(t *testing.T) {
	source := requests{}
	for i := range 100 {
		source = append(source, trace.Request{At: time.Duration(i) * 100 * time.Millisecond, Input: 100, Output: 200}) // 2 s each
	}
	c := Config{Replicas: 2, HealthDelay: time.Second, Faults: []Fault{{Kind: Fail, Replica: 0, At: 3050 * time.Millisecond, Until: 6050 * time.Millisecond}}}
	result, records := run(t, c, &source)
	counts := map[replay.Kind]int{}
	for _, r := range records {
		counts[r.Error]++
		switch due := r.Due; {
		case r.Error == replay.Cut && (due < 0.8 || due > 3.05 || !near(due+r.E2E, 3.05, 1e-9) || r.Tokens == 0):
			t.Errorf("cut: %+v", r)
		case r.Error == replay.Connect:
			t.Errorf("the proxy did not try the other replica: %+v", r)
		}
	}
	// Every second request of about 2 s was at replica 0.
	if counts[replay.Cut] < 10 || counts[replay.Cut] > 13 || result.Failed() != counts[replay.Cut] {
		t.Errorf("%v, %+v", counts, result.Failures)
	}
	if n := result.Engines.GenerationTokens; n < uint64(200*counts[""]) {
		t.Errorf("%d tokens for %d answers", n, counts[""])
	}
	source = requests{{Input: 100, Output: 10}, {At: 4 * time.Second, Input: 100, Output: 10}, {At: 8 * time.Second, Input: 100, Output: 10}}
	c.Replicas = 1
	if _, records = run(t, c, &source); len(records) != 3 || records[1].Error != replay.Connect || records[1].E2E != 0 || records[0].Error != "" || records[2].Error != "" {
		t.Errorf("with one replica: %+v", records)
	}
	c.Replicas = 2
	source = requests{{Input: 100, Output: 300}, {At: time.Second, Input: 100, Output: 10}, {At: 2 * time.Second, Input: 100, Output: 10}}
	c.Faults = []Fault{{Kind: Drain, Replica: 0, At: 500 * time.Millisecond, Until: 1500 * time.Millisecond}, {Kind: Drain, Replica: 1, At: time.Second / 2}}
	_, records = run(t, c, &source)
	if len(records) != 3 || records[0].Error != replay.Connect || records[0].Index != 1 || records[1].Error != "" || records[2].Error != "" || records[1].Tokens+records[2].Tokens != 310 {
		t.Errorf("drain: %+v", records)
	}
}

// TestStaleLoads checks that least load herds on what it heard last: with reports every ten seconds it
// knows only what it sent itself.
func TestStaleLoads(t *testing.T) {
	source := func() trace.Source {
		return &requests{
			{Input: 100, Output: 200}, {At: 1, Input: 50, Output: 500}, // to 0 and 1
			{At: 3400 * time.Millisecond, Input: 30, Output: 1}, // 0 is idle by now
		}
	}
	at := func(c Config) (replicas []int) {
		c.Source, c.Profile, c.Replicas, c.Policy = source(), profile, 2, "least-load"
		s, err := New(c)
		testkit.NoError(t, err)
		testkit.Must(s.Run(t.Context()))
		for _, r := range s.replicas {
			replicas = append(replicas, int(r.scheduler.Stats().PromptTokens))
		}
		return replicas
	}
	if got := at(Config{ReportInterval: 10 * time.Second}); got[0] != 100 || got[1] != 80 {
		t.Errorf("with loads of 10 s ago: prompts of %v tokens, want 100 and 80", got)
	}
	if got := at(Config{}); got[0] != 130 || got[1] != 50 {
		t.Errorf("with loads of 1 s ago: prompts of %v tokens, want 130 and 50", got)
	}
	if got := at(Config{ReportInterval: 2 * time.Second, ReportDelay: 1500 * time.Millisecond}); got[0] != 100 || got[1] != 80 {
		t.Errorf("with loads of 3 s ago: prompts of %v tokens, want 100 and 80", got)
	}
}

// TestQueue compares with a stable sort: events of one time happen in the order in which they were
// scheduled.
func TestQueue(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	var q queue
	var want []event
	for i := range 3000 {
		e := event{at: time.Duration(rng.IntN(50)), index: int32(i)}
		q.push(e)
		want = append(want, e)
	}
	slices.SortStableFunc(want, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for _, w := range want {
		if e, ok := q.pop(); !ok || e.at != w.at || e.index != w.index {
			t.Fatalf("event %d at %d, want %d at %d", e.index, e.at, w.index, w.at)
		}
	}
	if _, ok := q.pop(); ok {
		t.Error("an event too many")
	}
}

// TestSentSinceTheMeasurement checks that a report which is late does not hide what was sent meanwhile.
func TestSentSinceTheMeasurement(t *testing.T) {
	p := newProxy(nil, &Config{Replicas: 1})
	p.send(&request{Request: trace.Request{Input: 100}})
	p.recordLoads([]policies.Tokens{40})
	p.send(&request{Request: trace.Request{Input: 7}})
	if got := p.replicas[0]; got.Load != 107 || got.Requests != 2 {
		t.Errorf("before the report: %+v, want 107 tokens of 2 requests", got)
	}
	p.applyLoads()
	if got := p.replicas[0].Load; got != 47 {
		t.Errorf("after the report: %d, want 47", got)
	}
}

// TestPrefixCache checks that a request finds the blocks that its trace says it shares.
func TestPrefixCache(t *testing.T) {
	source := requests{
		{Input: 1500, Output: 1, Prefix: []uint64{1, 2, 3}},
		{At: time.Second, Input: 1500, Output: 1, Prefix: []uint64{1, 2, 4}},
		{At: 2 * time.Second, Input: 1500, Output: 1, Prefix: []uint64{1, 2, 3}},
		{At: 3 * time.Second, Input: 1500, Output: 1},
	}
	_, records := run(t, Config{}, &source)
	for i, want := range []int64{0, 1024, 1488, 0} {
		if records[i].Cached != want {
			t.Errorf("request %d found %d tokens, want %d", i, records[i].Cached, want)
		}
	}
}

// TestBadConfigs lists what New and Run refuse.
func TestBadConfigs(t *testing.T) {
	good := Config{Replicas: 1, Profile: profile, Policy: "round-robin", Source: &requests{}}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for want, edit := range map[string]func(*Config){
		"0 replicas":              func(c *Config) { c.Replicas = 0 },
		"-1 proxies":              func(c *Config) { c.Proxies = -1 },
		"Source is required":      func(c *Config) { c.Source = nil },
		"holds no block":          func(c *Config) { c.KVTokens = 15 },
		"at most 1073741824":      func(c *Config) { c.KVTokens = 1 << 60 },
		"a stress of 1.1":         func(c *Config) { c.Stress = 1.1 },
		"a slack of 1.1":          func(c *Config) { c.Slack = 1.1 },
		"a slack of NaN":          func(c *Config) { c.Slack = math.NaN() },
		"batch of -1":             func(c *Config) { c.MaxBatch = -1 },
		"reports every 1ns":       func(c *Config) { c.ReportInterval = 1 },
		"after 2s, health":        func(c *Config) { c.ReportDelay = 2 * time.Second },
		`field "d0"`:              func(c *Config) { c.Profile.D0 = 0 },
		`policy "x"`:              func(c *Config) { c.Policy = "x" },
		"needs a table":           func(c *Config) { c.Attention = cost.MeasuredSkew },
		"give 1 proxy, not 2":     func(c *Config) { c.Policy, c.Proxies, c.Replicas = "llumnix", 2, 2 },
		"leave at least 1":        func(c *Config) { c.Policy, c.PrefillReplicas, c.Replicas = "prefill-decode", 2, 2 },
		"0 prefill replicas of 1": func(c *Config) { c.Policy = "prefill-decode" },
		"has no prefill replicas": func(c *Config) { c.PrefillReplicas, c.Replicas = 1, 2 },
		"admits all requests":     func(c *Config) { c.Admission = true },
		"cannot be configured":    func(c *Config) { c.Stages = policies.Partition{Counts: []int{1}} },
		"one count more": func(c *Config) {
			c.Policy, c.Stages = Cascade, policies.Partition{Cuts: []policies.Tokens{5, 9}, Counts: []int{1, 1}}
		},
		"2 replicas in all": func(c *Config) {
			c.Policy, c.Stages = Cascade, policies.Partition{Cuts: []policies.Tokens{5}, Counts: []int{1, 1}}
		},
		"must start at 5": func(c *Config) {
			c.Policy, c.Stages = Cascade, policies.Partition{Cuts: []policies.Tokens{5, 5}, Counts: []int{1, 1, 1}}
		},
		"needs at least one replica": func(c *Config) {
			c.Policy, c.Stages = Cascade, policies.Partition{Cuts: []policies.Tokens{5}, Counts: []int{1, 0}}
		},
		`kind "x" must be`: func(c *Config) { c.Faults = []Fault{{Kind: "x"}} },
		"speed 0: must be": func(c *Config) { c.Faults = []Fault{{Kind: Slow}} },
		"speed 2: must be": func(c *Config) { c.Faults = []Fault{{Kind: Drain, Speed: 2}} },
		"replica 1 of 1":   func(c *Config) { c.Faults = []Fault{{Kind: Fail, Replica: 1}} },
		"from 2s until 1s": func(c *Config) { c.Faults = []Fault{{Kind: Fail, At: 2 * time.Second, Until: time.Second}} },
	} {
		c := good
		edit(&c)
		_, err := New(c)
		testkit.WantError(t, err, want)
	}
	late := good
	late.Source = &requests{{At: 2, Input: 1, Output: 1}, {At: 1, Input: 1, Output: 1}}
	s, _ := New(late)
	_, err := s.Run(t.Context())
	testkit.WantError(t, err, "sort the trace")
	result, records := run(t, Config{KVTokens: 100}, &requests{{Input: 90, Output: 10}, {Input: 97, Output: 4}})
	if result.Completed != 0 || records[0].Error != TooLong || len(records) != 2 {
		t.Errorf("too long: %+v", records)
	}
}

// TestMemoryIsFlat compares the memory at the end of a run, whose caches are full by then, with that of a
// run of four times the length: the latency histograms have seen more distinct times, and queues were
// longer once.
func TestMemoryIsFlat(t *testing.T) {
	live := func(policy string, n int) uint64 {
		s, err := New(Config{Replicas: 4, Profile: profile, Policy: policy, Source: mix(n, 75, 1)})
		testkit.NoError(t, err)
		testkit.Must(s.Run(t.Context()))
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		runtime.KeepAlive(s)
		return m.HeapAlloc
	}
	live("prefix-hash", 100)
	for _, policy := range []string{"prefix-hash", "prefix-tree", "llumnix-balanced", Cascade, Paper} {
		short, long := live(policy, 4_000), live(policy, 16_000)
		t.Logf("%s: %d bytes after 4,000 requests, %d after 16,000", policy, short, long)
		if long > short+750_000 {
			t.Errorf("%s: memory grows with the trace", policy)
		}
	}
}
