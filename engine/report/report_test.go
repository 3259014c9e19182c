package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// engine answers on synthetic time: a prefill whose time grows with the prompt, then tokens with a
// step whose time grows with the outstanding requests.
type engine struct {
	step    time.Duration
	crowd   time.Duration // added per outstanding request
	longs   float64       // factor for long prompts
	failing int           // one of so many requests fails

	mu            sync.Mutex
	inside, count int
}

func (e *engine) RoundTrip(r *http.Request) (*http.Response, error) {
	var body struct {
		Prompt    string `json:"prompt"`
		MaxTokens int    `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.count++; e.failing > 0 && e.count%e.failing == 0 {
		return nil, errors.New("connection refused")
	}
	tokens := strings.Count(body.Prompt, " ")
	e.inside++
	step, stage := e.step+time.Duration(e.inside)*e.crowd, "s0"
	if tokens > 4096 {
		step, stage = time.Duration(float64(step)*e.longs), "s1"
	}
	from, to := io.Pipe()
	go func() {
		defer func() {
			e.mu.Lock()
			e.inside--
			e.mu.Unlock()
		}()
		time.Sleep(time.Duration(tokens) * 100 * time.Microsecond)
		for range body.MaxTokens {
			time.Sleep(step)
			fmt.Fprint(to, "data: {\"choices\":[{\"text\":\" a\"}]}\n\n")
		}
		fmt.Fprint(to, "data: [DONE]\n\n")
		to.Close()
	}()
	header := http.Header{"Content-Type": {"text/event-stream"}, "X-Cascade-Stage": {stage}}
	return &http.Response{StatusCode: 200, Header: header, Body: from, Request: r}, nil
}

// runs replays one trace on two engines; the first one fails some requests and runs on a busy
// machine. The tests share the results.
func runs(t *testing.T) []replay.Result {
	t.Helper()
	if replayed != nil {
		return slices.Clone(replayed)
	}
	g, _ := trace.Named("mixed")
	g.Requests, g.Rate, g.Seed = 200, 3, 1
	g.Classes[0].Output.Max, g.Classes[1].Output.Max = 40, 40
	requests, err := g.Generate()
	testkit.NoError(t, err)
	var results []replay.Result
	for _, system := range []struct {
		name string
		idle float64
		*engine
	}{
		{"round robin", 0.2, &engine{step: 20 * time.Millisecond, crowd: 3 * time.Millisecond, longs: 1, failing: 80}},
		{"cascade", 0.6, &engine{step: 18 * time.Millisecond, crowd: 2 * time.Millisecond, longs: 2}},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			run, err := replay.New(replay.Config{
				Name: system.name, Target: "http://fake", Model: "m", Requests: requests, Transport: system.engine, Speed: 10,
				CPU: func() (replay.CPUTimes, error) {
					s := time.Since(start).Seconds()
					return replay.CPUTimes{Idle: system.idle * s, Total: s}, nil
				},
			})
			testkit.NoError(t, err)
			result, err := run.Run(t.Context())
			testkit.NoError(t, err)
			results = append(results, result)
		})
	}
	replayed = results
	return slices.Clone(replayed)
}

var replayed []replay.Result

func TestTables(t *testing.T) {
	results := runs(t)
	var out bytes.Buffer
	for _, table := range []Table{Runs(results), Latencies(results), Classes(results), Stages(results[1])} {
		for _, write := range []func(io.Writer) error{table.Text, table.Markdown} {
			testkit.NoError(t, write(&out))
			out.WriteString("\n")
		}
	}
	testkit.CompareGolden(t, "testdata/tables.txt", out.Bytes())
}

func TestJSON(t *testing.T) {
	results := runs(t)
	var out bytes.Buffer
	testkit.NoError(t, WriteJSON(&out, results))
	var back []replay.Result
	testkit.NoError(t, json.Unmarshal(out.Bytes(), &back))
	// Results that were written and read back give the same tables and pictures.
	for i, pair := range [][2]Table{{Latencies(results), Latencies(back)}, {Classes(results), Classes(back)}} {
		var a, b strings.Builder
		if pair[0].Text(&a) != nil || pair[1].Text(&b) != nil || a.String() != b.String() {
			t.Errorf("table %d differs after JSON:\n%s%s", i, a.String(), b.String())
		}
	}
	p, err := Distribution(results, TTFT)
	q, err2 := Distribution(back, TTFT)
	if err != nil || err2 != nil || svg(t, p) != svg(t, q) {
		t.Errorf("the picture differs after JSON: %v, %v", err, err2)
	}
}

func svg(t *testing.T, p Picture) string {
	t.Helper()
	var b bytes.Buffer
	testkit.NoError(t, p.Write(&b))
	return b.String()
}

// TestPictures draws all pictures; `go test -artifacts` keeps the files.
func TestPictures(t *testing.T) {
	results := runs(t)
	plan := policies.Plan{Model: "llama-3-8b", Epoch: 7, Stages: []policies.Stage{
		{Low: 0, High: 1536, Replicas: []policies.ReplicaID{"a", "b", "c", "d"}},
		{Low: 1536, High: 12288, Replicas: []policies.ReplicaID{"e", "f", "g"}},
		{Low: 12288, High: policies.Unbounded, Replicas: []policies.ReplicaID{"h"}},
	}}
	narrow := policies.Plan{Model: "m", Stages: []policies.Stage{
		{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"a"}},
		{Low: 1000, High: 1100, Replicas: []policies.ReplicaID{"b"}},
		{Low: 1100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"c"}},
	}}
	var lengths []policies.Tokens
	g, _ := trace.Named("mixed")
	g.Requests = 1000
	requests, err := g.Generate()
	testkit.NoError(t, err)
	for _, r := range requests {
		lengths = append(lengths, r.Input+r.Output)
	}
	for _, tc := range []struct {
		name string
		draw func() (Picture, error)
		say  []string // words that the picture must contain
	}{
		{"ttft", func() (Picture, error) { return Distribution(results, TTFT) }, []string{"round robin (void)", "cascade", "time to first token (engine time)"}},
		{"normalised", func() (Picture, error) { return Distribution(results, Normalised) }, []string{"end-to-end latency per output token"}},
		{"length", func() (Picture, error) { return ByLength(results, Normalised) }, []string{"prompt tokens", "round robin (void)"}},
		{"timeline", func() (Picture, error) { return Timeline(results) }, []string{"tokens/s generated", "requests in flight"}},
		{"plan", func() (Picture, error) { return Plan("Plan of llama-3-8b, epoch 7", plan, lengths) }, []string{"Plan of llama-3-8b, epoch 7", "stage 2", "4 replicas", "1 replica", "1,536–12,288", "12,288–∞"}},
		{"stages", func() (Picture, error) { return Plan("Plan of llama-3-8b, epoch 7", plan, nil) }, []string{"stage 0", "length in tokens"}},
		{"prefixes", func() (Picture, error) { return ReusePicture(reuseResults()) }, []string{"ideal: 40.0 %", "load CV", "engines (void)", "silent"}},
		{"narrow", func() (Picture, error) { return Plan("Narrow", narrow, nil) }, []string{"1×"}},
		{"one", func() (Picture, error) {
			return Plan("One", policies.OneStagePlan("m", []policies.ReplicaID{"a"}), nil)
		}, []string{"0–∞"}},
		{"one-histogram", func() (Picture, error) {
			return Plan("One", policies.OneStagePlan("m", []policies.ReplicaID{"a"}), []policies.Tokens{700})
		}, []string{"0–∞", "share of requests"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := tc.draw()
			testkit.NoError(t, err)
			text := svg(t, p)
			for _, say := range tc.say {
				if !strings.Contains(text, say) {
					t.Errorf("the picture does not say %q", say)
				}
			}
			if strings.Contains(text, ">-0") {
				t.Error("an axis begins at a negative zero")
			}
			checkLayout(t, p, []string{"round robin", "cascade"})
			again, err := tc.draw()
			if err != nil || svg(t, again) != text || svg(t, p) != text {
				t.Error("drawing twice gives different bytes")
			}
			testkit.NoError(t, os.WriteFile(filepath.Join(t.ArtifactDir(), tc.name+".svg"), []byte(text), 0o644))
		})
	}
}

func TestNothingToDraw(t *testing.T) {
	for name, draw := range map[string]func() (Picture, error){
		"distribution of none":  func() (Picture, error) { return Distribution(nil, TTFT) },
		"distribution of empty": func() (Picture, error) { return Distribution(make([]replay.Result, 2), TTFT) },
		"bars":                  func() (Picture, error) { return ByLength(make([]replay.Result, 1), TTFT) },
		"timeline":              func() (Picture, error) { return Timeline(make([]replay.Result, 1)) },
		"predictions":           func() (Picture, error) { return PredictionPicture(profiling.Fitted{}) },
	} {
		if _, err := draw(); !errors.Is(err, ErrNoData) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Plan("None", policies.Plan{}, nil); err == nil {
		t.Error("an invalid plan is drawn")
	}
	nan := Chart{Draw: func(g *Grid) { g.Dot(XY{1, math.NaN()}, SeriesStyle(0)) }}
	if _, err := (Figure{Charts: []Chart{nan}}).Draw(); err == nil {
		t.Error("no number is drawn")
	}
	for _, table := range []Table{Runs(nil), Latencies(nil), Classes(nil), Stages(replay.Result{})} {
		if err := table.Text(io.Discard); err != nil {
			t.Error(err)
		}
	}
	p, err := Plan("One", policies.OneStagePlan("m", []policies.ReplicaID{"a"}), nil)
	testkit.NoError(t, err)
	if err := p.Write(io.Discard); err != nil {
		t.Error(err)
	}
}

// Results of different traces are not compared by decile.
func TestOtherTraces(t *testing.T) {
	results := runs(t)
	results[1].Engine.Deciles = results[1].Engine.Deciles[:3]
	if _, err := ByLength(results, TTFT); err != nil {
		t.Error(err)
	}
}

func TestFigures(t *testing.T) {
	for want, got := range map[string]string{
		"0": FormatTime(0), "12.3 µs": FormatTime(12.3e-6), "999 ms": FormatTime(0.9994), "1.00 ms": FormatTime(0.9996e-3), "1.00 s": FormatTime(1), "123 s": FormatTime(123.4),
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}
