package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

func near(t *testing.T, what string, got, want float64) { t.Helper(); within(t, what, got, want, 1e-9) }

func within(t *testing.T, what string, got, want, by float64) {
	t.Helper()
	if math.Abs(got-want) > by {
		t.Errorf("%s is %v, not %v", what, got, want)
	}
}

// On synthetic time every figure but percentiles is exact.
func TestLatencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{prefill: 200 * time.Millisecond, step: 10 * time.Millisecond}
		// The second request is sent while the first is outstanding.
		result, err := run(t, f, Config{Requests: every(100*time.Millisecond, 5, 30, 11), Speed: 2})
		testkit.NoError(t, err)
		if result.Completed != 5 || result.Failed() != 0 || result.Truncated != 0 {
			t.Fatalf("completed %d, failed %+v, truncated %d", result.Completed, result.Failures, result.Truncated)
		}
		w, e := result.Wall, result.Engine
		near(t, "TTFT mean", w.TTFT.Mean, 0.2)
		within(t, "TTFT p99", w.TTFT.P99, 0.2, 0.2*Error)
		within(t, "TPOT", w.TPOT.P50, 0.01, 0.01*Error)
		near(t, "E2E", w.E2E.Max, 0.3)
		near(t, "normalised", w.Normalised.Mean, 0.3/11)
		near(t, "lag", w.Lag.Max, 0)
		near(t, "seconds", w.Seconds, 0.5) // the fifth is due at 0.4 s ÷ 2
		near(t, "requests/s", w.RequestsPerSecond, 10)
		near(t, "tokens/s", w.TokensPerSecond, 110)
		near(t, "prompt tokens/s", w.InputPerSecond, 300)
		near(t, "engine TTFT", e.TTFT.Mean, 0.4)
		near(t, "engine TPOT", e.TPOT.Mean, 0.02)
		near(t, "engine requests/s", e.RequestsPerSecond, 5)
		for i, r := range result.Records {
			near(t, "due", r.Due, 0.05*float64(i))
			if r.Tokens != 11 || r.Prompt != 7 || r.Cached != 2 || r.Stage != "s0" || r.Status != 200 {
				t.Errorf("record %+v", r)
			}
		}
		if d := cmp.Diff([]StageShare{{"s0", 5, 7, 7}}, result.Stages); d != "" {
			t.Error(d)
		}
		total := 0.0
		for _, m := range w.Timeline {
			total += m.Tokens * w.Seconds / moments
		}
		if math.Abs(total-55) > 1e-6 {
			t.Errorf("the timeline holds %v tokens of 55", total)
		}
		if result.IdleCPU != -1 || result.Void != "" {
			t.Errorf("idle %v, void %q on a system without CPU times", result.IdleCPU, result.Void)
		}
	})
}

// TestLastAnswer checks that one long answer at the end of a run changes its latencies, not its rates.
func TestLastAnswer(t *testing.T) {
	records := make([]Record, 200)
	for i := range records {
		records[i] = Record{Due: 0.1 * float64(i), E2E: 0.1, Tokens: 10, Input: 100}
	}
	records[199].E2E = 60
	records[3].Error = "cut"
	m := measure(records, 80, 2)
	near(t, "seconds", m.Seconds, 160)
	within(t, "most seconds", m.MostSeconds, 2*19.8, 160.0/timeSlots*2)
	near(t, "requests/s", m.RequestsPerSecond, 197/m.MostSeconds)
	near(t, "tokens/s", m.TokensPerSecond, 1970/m.MostSeconds)
	near(t, "prompt tokens/s", m.InputPerSecond, 19700/m.MostSeconds)
	near(t, "slowest", m.E2E.Max, 120)
	if empty := measure(nil, 1, 1); empty.RequestsPerSecond != 0 || empty.MostSeconds != 0 {
		t.Errorf("of no requests: %+v", empty)
	}
	if empty := measure(nil, 0, 1); empty.Timeline != nil || empty.Deciles != nil || empty.TTFT.Count != 0 {
		t.Errorf("of no requests in no time: %+v", empty)
	}
}

func TestRequestAsSent(t *testing.T) {
	for _, prompt := range []Prompt{PromptText, PromptIDs} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			_, err := run(t, f, Config{Requests: every(0, 1, 700, 3), Prompt: prompt, Host: "m.example", Header: http.Header{"X-Extra": {"1"}}})
			testkit.NoError(t, err)
			r := f.requests[0]
			if r.Model != "m" || r.MaxTokens != 3 || !r.IgnoreEOS || !r.Stream || r.host != "m.example" || r.header.Get("X-Extra") != "1" {
				t.Errorf("sent %+v", r)
			}
			var text string
			var ids []int
			if prompt == PromptIDs {
				if err := json.Unmarshal(r.Prompt, &ids); err != nil || len(ids) != 700 {
					t.Errorf("%d ids, %v", len(ids), err)
				}
			} else if err := json.Unmarshal(r.Prompt, &text); err != nil || len(strings.Fields(text)) != 700 {
				t.Errorf("%d words, %v", len(strings.Fields(text)), err)
			}
		})
	}
}

// Requests wait for a connection if they may open no more, and the wait counts as latency.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{prefill: time.Second}
		result, err := run(t, f, Config{Requests: every(0, 4, 5, 1), Connections: 1})
		testkit.NoError(t, err)
		near(t, "slowest of four in a row", result.Wall.TTFT.Max, 4)
		within(t, "fastest", result.Wall.TTFT.Percentiles[0], 1, Error)
	})
}

func TestFailures(t *testing.T) {
	// answer sends events and ends; an answer that panics is cut.
	answer := func(events string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, events)
			_ = http.NewResponseController(w).Flush()
		}
	}
	for want, override := range map[string]func(http.ResponseWriter){
		`http 500: "{\"error\":1}\n"`: func(w http.ResponseWriter) {
			http.Error(w, `{"error":1}`, http.StatusInternalServerError)
		},
		"cut: the stream ended without [DONE]": answer(chunk),
		"cut: unexpected EOF": func(w http.ResponseWriter) {
			answer(chunk)(w)
			panic(http.ErrAbortHandler)
		},
		`malformed: an event is not a JSON object: "{\"choices\":["`: answer("data: {\"choices\":[\n\n"),
		`malformed: an event is not a JSON object: "7"`:              answer("data: 7\n\n"),
		`malformed: an event has no choices: "{}"`:                   answer(": a comment\n\ndata: {}\n\n"),
		"malformed: an event is longer than 1048576 bytes":           answer("data: " + strings.Repeat("x", maxEvent) + "\n\n"),
		"malformed: the stream has no token":                         func(w http.ResponseWriter) { answer("")(w); finish(w, 1, 0) },
		`malformed: the content type is "text/plain; charset=utf-8", not text/event-stream`: func(w http.ResponseWriter) {
			fmt.Fprint(w, "hello")
		},
		`error event: "{\"message\":\"engine died\"}"`: answer(chunk + "data: {\"error\":{\"message\":\"engine died\"}}\n\ndata: [DONE]\n\n"),
		`error event: "gone"`:                          answer("event: error\ndata: gone\n\n"),
		"timeout: no end within the timeout":           func(w http.ResponseWriter) { answer(chunk)(w); time.Sleep(time.Minute) },
		"connect: ":                                    func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				// The second of three requests fails.
				var n atomic.Int64 // a handler that is abandoned may still run
				f := &fake{override: func(w http.ResponseWriter) bool {
					second := n.Add(1) == 2
					if second {
						override(w)
					}
					return second
				}}
				result, err := run(t, f, Config{Requests: every(time.Minute, 3, 10, 2), Timeout: 30 * time.Second, Records: &log})
				testkit.NoError(t, err)
				if result.Completed != 2 || result.Failed() != 1 {
					t.Fatalf("completed %d, failures %+v", result.Completed, result.Failures)
				}
				got := result.Failures[0]
				if s := string(got.Kind) + ": " + got.First; !strings.HasPrefix(s, want) {
					t.Errorf("got  %s\nwant %s", s, want)
				}
				if lines := strings.Count(log.String(), "\n"); lines != 3 {
					t.Errorf("%d lines of records", lines)
				}
				var record Record
				if err := json.Unmarshal(bytes.Split(log.Bytes(), []byte("\n"))[1], &record); err != nil || record.Error != got.Kind || record.Waited != 60 {
					t.Errorf("the second record is %+v, %v", record, err)
				}
				if waited := strings.HasSuffix(got.First, " (its connection had waited for 60 s)"); waited != (record.Tokens == 0) {
					t.Errorf("%d tokens came before %s", record.Tokens, got.First)
				}
				if result.Wall.TTFT.Count != 2 || result.Wall.Classes[0].Failed != 1 {
					t.Errorf("a failed request counts as a latency: %+v", result.Wall)
				}
			})
		})
	}
}

func TestRecordsThatCannotBeWritten(t *testing.T) {
	testkit.WantError(t, writeRecords(io.Discard, []Record{{E2E: math.NaN()}}), "write the records: json")
}

func TestTruncatedAnswersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{override: func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			token(w, "a")
			finish(w, 5, 1)
			return true
		}}
		result, err := run(t, f, Config{Requests: every(0, 1, 5, 9)})
		if err != nil || result.Truncated != 1 || result.Completed != 1 {
			t.Errorf("truncated %d, completed %d, %v", result.Truncated, result.Completed, err)
		}
	})
}

// A server may send several tokens in one event; the usage that it reports takes precedence.
func TestUsageCountsTokens(t *testing.T) {
	a, err := listen(strings.NewReader(`data: {"choices":[{"text":"a b c"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}`+"\n\ndata: [DONE]\n\n"), time.Now)
	if err != nil || a.tokens() != 3 || a.prompt != 9 || a.events != 1 {
		t.Errorf("%+v, %v", a, err)
	}
	b, err := listen(strings.NewReader("data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n"), time.Now)
	if err != nil || b.tokens() != 1 {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestVoid(t *testing.T) {
	for _, tc := range []struct {
		busy   float64 // CPU share from the third second on
		niced  float64 // of that, the share of niced processes
		beside bool
		void   bool
	}{{0.9, 0, true, true}, {0.5, 0, false, false}, {0.9, 0.5, false, true}, {0.9, 0.5, true, false}} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			f := &fake{prefill: 100 * time.Second}
			result, err := run(t, f, Config{Requests: every(0, 1, 5, 1), BesideNiced: tc.beside, CPU: func() (CPUTimes, error) {
				s := time.Since(start).Seconds()
				return CPUTimes{Idle: s - tc.busy*max(0, s-3), Niced: tc.busy * tc.niced * max(0, s-3), Total: s}, nil
			}})
			testkit.NoError(t, err)
			if (result.Void != "") != tc.void {
				t.Errorf("idle %.2f: void is %q", result.IdleCPU, result.Void)
			}
			busy := tc.busy
			if tc.beside {
				busy *= 1 - tc.niced
			}
			near(t, "idle", result.IdleCPU, 1-busy*0.97)
			near(t, "idle in the worst second", result.IdleCPUWorst, 1-busy)
		})
	}
}

func TestParseProcStat(t *testing.T) {
	got, err := parseProcStat([]byte("cpu  17711 1 4537 231781 843 2 57 23 900 900"))
	if err != nil || got.Idle != 231781+843 || got.Niced != 1 || got.Total != 17711+1+4537+231781+843+2+57+23 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 x 5 6 7 8"} {
		if _, err := parseProcStat([]byte(bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(2500*time.Millisecond, func() { cancel(why) })
		f := &fake{prefill: time.Second}
		var seen []Progress
		result, err := runContext(t, ctx, f, Config{Requests: every(time.Second, 10, 5, 1), Progress: func(p Progress) { seen = append(seen, p) }})
		if !errors.Is(err, why) || !result.Interrupted {
			t.Errorf("the run ends with %v", err)
		}
		if result.Sent != 3 || result.Completed != 2 || len(result.Failures) != 1 || result.Failures[0].Kind != Cancelled {
			t.Errorf("sent %d, completed %d, %+v", result.Sent, result.Completed, result.Failures)
		}
		want := Progress{Total: 10, Sent: 3, Done: 3, Failed: 1, Elapsed: 2500 * time.Millisecond, Remaining: 6500 * time.Millisecond, IdleCPU: -1}
		if len(seen) != 3 || seen[2] != want {
			t.Errorf("progress %+v", seen)
		}
	})
}

func TestConfigErrors(t *testing.T) {
	good := func() Config {
		return Config{Target: "http://127.0.0.1:1", Model: "m", Requests: every(1, 2, 1, 1)}
	}
	if _, err := New(good()); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"target":             func(c *Config) { c.Target = "127.0.0.1:80" },
		"target \"ftp":       func(c *Config) { c.Target = "ftp://x" },
		"model":              func(c *Config) { c.Model = "" },
		"no request":         func(c *Config) { c.Requests = nil },
		"no arrival time":    func(c *Config) { c.Requests[0].At = trace.NoArrival },
		"before the one":     func(c *Config) { c.Requests[0].At = time.Hour },
		"prompt":             func(c *Config) { c.Prompt = "image" },
		"speed":              func(c *Config) { c.Speed = math.Inf(1) },
		"timeout":            func(c *Config) { c.Timeout = -1 },
		"connections":        func(c *Config) { c.Connections = -1 },
		"parse \"http://[\"": func(c *Config) { c.Target = "http://[" },
	} {
		cfg := good()
		change(&cfg)
		_, err := New(cfg)
		testkit.WantError(t, err, want)
	}
}
