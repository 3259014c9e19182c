package trace

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// These flags name the public traces, from which the test fits the built-in mixes again:
//
//	go test ./engine/trace -run FitOfPublicTraces -update \
//	  -chat AzureLLMInferenceTrace_conv.csv -conversation conversation_trace.jsonl -agent kv-cache-tester/traces
var (
	chatFile         = flag.String("chat", "", "Azure's 2023 conversation trace, to fit the mix of that name to")
	conversationFile = flag.String("conversation", "", "Mooncake's FAST'25 conversation trace, to fit the mixes conversation and assistant to")
	agentDir         = flag.String("agent", "", "directory of the sessions of callanjfox/kv-cache-tester, to fit the mix of that name to")
	update           = flag.Bool("update", false, "write mixes.json and testdata/fit.txt")
)

// Bounds of the prompts and answers of two mixes, together.
const (
	maxAssistant policies.Tokens = 8 << 10
	maxAgent     policies.Tokens = 64 << 10
)

// agentTools is the beginning that all prompts of the mix agent share: the tools' definitions, of which the
// sessions state the length. That all sessions have the same tools is a choice: the trace has them of a year of
// releases.
const agentTools policies.Tokens = 12 << 10

// TestFitOfPublicTraces fits the built-in mixes and reports how good the fit is. It fails if a
// generated trace differs too much from the real one.
func TestFitOfPublicTraces(t *testing.T) {
	if *chatFile == "" || *conversationFile == "" || *agentDir == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the public traces are not in the repository", Remedy: "give their files: -chat FILE -conversation FILE -agent DIRECTORY"})
	}
	mixes := make(map[string]Generator)
	var report strings.Builder
	report.WriteString("Written by: go test ./engine/trace -run FitOfPublicTraces -update -chat FILE -conversation FILE -agent DIRECTORY\n")
	for _, f := range []struct {
		name, source string
		read         func(*testing.T) []Request
		shape        Shape
		components   int
		system       policies.Tokens // instead of what is fitted
	}{
		{"chat", "azure2023_conv, Azure/AzurePublicDataset", readFile(*chatFile), Shape{}, 24, 0},
		// The trace's clock ticks every 3 s.
		{"conversation", "conversation_trace FAST25, kvcache-ai/Mooncake", readFile(*conversationFile), Shape{Spread: 3 * time.Second}, 16, 0},
		{"assistant", "conversation_trace FAST25, kvcache-ai/Mooncake, requests up to 8,192 tokens", readFile(*conversationFile), Shape{Spread: 3 * time.Second, MaxLength: maxAssistant}, 16, 0},
		{"agent", "sessions of callanjfox/kv-cache-tester, superposed, requests up to 65,536 tokens", readSessions, Shape{MaxLength: maxAgent}, 16, agentTools},
	} {
		f.shape.Seed = 1
		real, err := f.shape.Apply(f.read(t))
		testkit.NoError(t, err)
		g, err := Fit(real, FitConfig{Name: f.name, Source: f.source, Components: f.components, Seed: 1})
		testkit.NoError(t, err)
		mixes[f.name] = g
		fitted := g.Classes[0].Prefix
		g.Requests, g.Seed = len(real), 2
		generated, err := g.Generate()
		testkit.NoError(t, err)
		q := Compare(real, generated)
		fmt.Fprintf(&report, "\n%s: %s, %d requests; %d components, rate %.2f/s, gap CV %.2f, swing %.2f\n%s",
			f.name, f.source, len(real), len(g.Classes[0].Lengths), g.Rate, g.GapCV, g.Swing, q)
		if q.InputKS > 0.05 || q.OutputKS > 0.05 {
			t.Errorf("%s: KS distances %.3f and %.3f are above 0.05", f.name, q.InputKS, q.OutputKS)
		}
		if f.system > 0 {
			fitted.System = f.system
			mixes[f.name].Classes[0].Prefix = fitted
			fmt.Fprintf(&report, "The shipped mix has a beginning of %d tokens that all prompts share, the trace none that its ids name.\n", f.system)
		}
	}
	t.Log(report.String())
	if !*update {
		return
	}
	text, err := json.MarshalIndent(mixes, "", " ")
	testkit.NoError(t, err)
	for name, content := range map[string][]byte{"mixes.json": append(text, '\n'), "testdata/fit.txt": []byte(report.String())} {
		testkit.NoError(t, os.WriteFile(name, content, 0o644))
	}
}

func readFile(path string) func(*testing.T) []Request {
	return func(t *testing.T) []Request {
		file, err := os.Open(path)
		testkit.NoError(t, err)
		defer file.Close()
		return testkit.Must(Read(file, filepath.Base(path)))
	}
}

// session is a recorded session: requests of a person's agent, and those of the agents that it started.
type session struct {
	ID       string           `json:"id"`
	Requests []sessionRequest `json:"requests"`
}

type sessionRequest struct {
	At       float64          `json:"t"` // seconds; of a subagent's requests, since it began
	Type     string           `json:"type"`
	Agent    string           `json:"agent_id"`
	Input    policies.Tokens  `json:"in"`
	Output   policies.Tokens  `json:"out"`
	HashIDs  []uint64         `json:"hash_ids"` // of blocks of 64 tokens, unique in the session
	Requests []sessionRequest `json:"requests"` // of a subagent
}

// How sessions become one trace: they begin at random times within sessionStarts, a person's pauses are cut to
// maxPause, and what arrives in the window from windowStart to windowEnd counts. The times between sessions are
// not recorded; those inside of them are.
const (
	sessionStarts = 4 * time.Hour
	windowStart   = time.Hour
	windowEnd     = 3 * time.Hour
	maxPause      = 300.0 // seconds
	sessionBlock  = 64    // tokens
)

// readSessions reads all sessions and superposes them.
func readSessions(t *testing.T) []Request {
	files := testkit.Must(filepath.Glob(filepath.Join(*agentDir, "trace_*.json")))
	rng := rand.New(rand.NewPCG(7, 7))
	var out []Request
	for _, file := range files {
		var s session
		if err := json.Unmarshal(testkit.Must(os.ReadFile(file)), &s); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		begin := time.Duration(rng.Int64N(int64(sessionStarts)))
		for _, r := range s.timeline() {
			at := begin + time.Duration(r.At*float64(time.Second))
			if at < windowStart || at > windowEnd || r.Input < 1 || r.Output < 1 {
				continue
			}
			out = append(out, Request{At: at - windowStart, Input: r.Input, Output: r.Output, Prefix: prefixOf(s.ID, r)})
		}
	}
	slices.SortStableFunc(out, func(a, b Request) int { return cmp.Compare(a.At, b.At) })
	return out
}

// timeline returns the requests of a session in order, without its long pauses.
func (s session) timeline() []sessionRequest {
	var all []sessionRequest
	for _, r := range s.Requests {
		if r.Type != "subagent" {
			all = append(all, r)
			continue
		}
		for _, sub := range r.Requests {
			sub.At += r.At
			all = append(all, sub)
		}
	}
	slices.SortStableFunc(all, func(a, b sessionRequest) int { return cmp.Compare(a.At, b.At) })
	last, at := 0.0, 0.0
	for i := range all {
		if i > 0 {
			at += min(all[i].At-last, maxPause)
		}
		last, all[i].At = all[i].At, at
	}
	return all
}

// prefixOf returns the ids of a prompt's whole blocks of BlockTokens: hashes of all before them.
func prefixOf(session string, r sessionRequest) []uint64 {
	const per = int(BlockTokens) / sessionBlock
	h := fnv.New64a()
	h.Write([]byte(session))
	var out []uint64
	for i, id := range r.HashIDs {
		h.Write(binary.LittleEndian.AppendUint64(nil, id))
		if (i+1)%per == 0 && len(out) < blocks(r.Input) {
			out = append(out, h.Sum64())
		}
	}
	return out
}
