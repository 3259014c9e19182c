package batch

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"flag"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

var vllmLog = flag.String("vllm-log", "", "LLMServingSim's request log of a real vLLM run on RTX PRO 6000 (jsonl.gz), to compare with")

// logged is one request of the log; times are seconds on one clock.
type logged struct {
	Input  int     `json:"input_toks"`
	Output int     `json:"output_toks"`
	Queued float64 `json:"queued_ts"`
	First  float64 `json:"first_token_ts"`
	Last   float64 `json:"last_token_ts"`
}

// TestAgainstVLLM replays the log of a real run through the scheduler and the
// built-in profile of that GPU, on virtual time, and compares latencies. The
// log is not in the repository.
func TestAgainstVLLM(t *testing.T) {
	if *vllmLog == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the log of a real run is not in the repository", Remedy: "give its file: -vllm-log FILE"})
	}
	f, err := os.Open(*vllmLog)
	testkit.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	testkit.NoError(t, err)
	var log []logged
	for lines := bufio.NewScanner(z); lines.Scan(); {
		var r logged
		testkit.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		log = append(log, r)
	}
	profile, err := cost.Builtin("rtxpro6000-llama-3.1-8b")
	testkit.NoError(t, err)
	pool, err := kv.NewPool(kv.Layout{Blocks: int(profile.KVTokens) / 16, BlockTokens: 16, SlotBytes: 8, Regions: 1})
	testkit.NoError(t, err)
	defer pool.Close()
	// At most 128 requests ran at once in that log.
	s, err := New(Config{Model: newModel(t), Pool: pool, Profile: profile, MaxBatch: 128, MaxTokens: 2048, NoPrefixCache: true})
	testkit.NoError(t, err)
	index := make(map[*Sequence]int)
	mine := slices.Clone(log)
	now := log[0].Queued
	for next := 0; next < len(log) || !s.Idle(); {
		if s.Idle() {
			now = max(now, log[next].Queued)
		}
		for ; next < len(log) && log[next].Queued <= now; next++ {
			q := NewSequence(Request{Prompt: prompt(log[next].Input, 0, next), MaxOutput: log[next].Output, IgnoreEOS: true}, 16)
			index[q] = next
			s.Add(q)
		}
		st := s.Step()
		now += st.Seconds
		for _, e := range st.Events {
			r := &mine[index[e.Sequence]]
			if e.Sequence.Output() == 1 {
				r.First = now
			}
			r.Last = now
		}
	}
	for _, m := range []struct {
		name string
		of   func(logged) float64
	}{
		{"TPOT", func(r logged) float64 { return (r.Last - r.First) / float64(r.Output-1) }},
		{"TTFT", func(r logged) float64 { return r.First - r.Queued }},
		{"latency", func(r logged) float64 { return r.Last - r.Queued }},
	} {
		for _, q := range []float64{0.5, 0.9, 0.99} {
			at := func(l []logged) float64 {
				var x []float64
				for _, r := range l {
					x = append(x, m.of(r))
				}
				slices.Sort(x)
				return x[int(q*float64(len(x)))]
			}
			got, want := at(mine), at(log)
			t.Logf("%s p%.0f: emulated %.4f s, vLLM %.4f s (%+.1f %%)", m.name, q*100, got, want, (got/want-1)*100)
			if math.Abs(got/want-1) > 0.1 {
				t.Errorf("%s p%.0f is more than 10 %% off", m.name, q*100)
			}
		}
	}
}
