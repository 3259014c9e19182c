package profiler

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// measure measures all cells, and calls each with every log.
func measure(t *testing.T, c Config, cells []profiling.Cell, each func(profiling.Log)) (logs []profiling.Log) {
	t.Helper()
	p := testkit.Must(New(c))
	testkit.Must(p.WarmUp(t.Context()))
	for _, cell := range cells {
		if cell.Skip(logs) {
			continue
		}
		l := testkit.Must(p.Run(t.Context(), cell))
		if l.Failed > 0 {
			t.Errorf("cell %v: %d requests failed: %s", cell, l.Failed, l.Failure)
		}
		each(l)
		logs = append(logs, l)
	}
	return logs
}

// TestFindsTheEnginesModel measures emulated engines in virtual time: the fit must find the coefficients that
// they run by, within 5 %.
func TestFindsTheEnginesModel(t *testing.T) {
	for _, name := range []string{"rtxpro6000-llama-3.1-8b", "h200-llama-3.1-8b"}[:testkit.Size(1, 2)] {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				want := testkit.Must(cost.Builtin(name))
				c, stop := serveEngine(t, emulator.Config{Profile: want})
				defer stop()
				c.Seconds = 4
				c.Grid = profiling.Grid{Shortest: 100, Longest: 25600, Factor: 4, MaxBatch: testkit.Size(16, 64), Output: 64, Context: 131072, KVTokens: want.KVTokens}
				got := testkit.Must(profiling.Fit(measure(t, c, append(c.Grid.Cells(), c.Grid.MixedCells()...), func(profiling.Log) {}), profiling.FitOptions{}))
				for _, x := range []struct {
					name      string
					got, want float64
				}{{"d0", got.D0, want.D0}, {"d1", got.D1, want.D1}, {"d2", got.D2, want.D2}, {"d3", got.D3, want.D3}, {"d4", got.D4, want.D4}} {
					t.Logf("%s is %.4g, given %.4g: %+.2f %%", x.name, x.got, x.want, 100*(x.got/x.want-1))
					if math.Abs(x.got-x.want) > 0.05*x.want {
						t.Errorf("%s is %v, not %v within 5 %%", x.name, x.got, x.want)
					}
				}
				t.Logf("kappa is %.4g ± %.2g, given %.4g; %v", got.Kappa, got.StandardErrors.Kappa, want.Kappa, got.Normalised)
				if math.Abs(got.Kappa-want.Kappa) > 0.05*want.Kappa+0.05 {
					t.Errorf("kappa is %v, not %v", got.Kappa, want.Kappa)
				}
				if e := got.Normalised; e.Model.Mean > e.Static.Mean/4 {
					t.Errorf("the QoE model is not much better than the static predictor: %v", e)
				}
				if e := got.InterToken; e.Model.Mean > 0.01 {
					t.Errorf("the times between tokens of requests that were not fitted: %v", e)
				}
			})
		})
	}
}

// TestQoEAgreesWithTheEnginesLog compares D_0 … D_4 with a fit that is computed from the server's side of the
// same requests by other code: see serverLog. Every run has the same requests at the same times. The two fits
// differ by times in whole microseconds, some 1e-4 of a step, and by the one request that Fit holds out: its seed
// chooses one that determines no coefficient by itself.
func TestQoEAgreesWithTheEnginesLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, stop := serveEngine(t, emulator.Config{Profile: testkit.Must(cost.Builtin("h100-llama-3.1-8b"))})
		defer stop()
		server := &serverLog{handler: c.Transport.(handlerTransport).Handler}
		c.Transport = handlerTransport{server}
		c.Seconds = 4
		c.Grid = profiling.Grid{Shortest: 100, Longest: 6400, Factor: 4, MaxBatch: 16, Output: 64}
		var features [][5]float64
		var latencies []float64
		logs := measure(t, c, c.Grid.Cells(), func(l profiling.Log) {
			f, q := server.loads(l)
			features, latencies = append(features, f...), append(latencies, q...)
			server.requests = nil
		})
		got := testkit.Must(profiling.Fit(logs, profiling.FitOptions{HeldOut: 0.004, Seed: 2}))
		if got.HeldOut != 1 || got.Requests+1 != len(features) {
			t.Errorf("%d requests fitted and %d held out of %d", got.Requests, got.HeldOut, len(features))
		}
		want := fitByDescent(features, latencies)
		mean := 0.0
		for _, q := range latencies {
			mean += q / float64(len(latencies))
		}
		for k := range want {
			load := 0.0
			for _, f := range features {
				load += f[k] / float64(len(features))
			}
			t.Logf("D_%d is %.5g, by the engine's log %.5g: %.1f %% of the mean latency", k, got.QoE[k], want[k], 100*want[k]*load/mean)
			if math.Abs(got.QoE[k]-want[k]) > 0.002*want[k] {
				t.Errorf("D_%d is %v, not %v", k, got.QoE[k], want[k])
			}
		}
	})
}

// TestCellKeepsItsBatch checks each record against what was asked for.
func TestCellKeepsItsBatch(t *testing.T) {
	for _, api := range []API{Completions, Chat} {
		synctest.Test(t, func(t *testing.T) {
			c, stop := serveEngine(t, emulator.Config{Profile: testkit.Must(cost.Builtin("h100-llama-3.1-8b")), MaxBatch: 6})
			defer stop()
			c.API, c.Seconds = api, 2
			c.Grid = profiling.Grid{Shortest: 100, Longest: 400, Factor: 2, MaxBatch: 16, Output: 20}
			logs := measure(t, c, c.Grid.Cells(), func(profiling.Log) {})
			if len(logs) != 7 {
				t.Errorf("measured %d cells; the batches of 16, and of 8 longer ones, should have been left out", len(logs))
			}
			// Another run has other words, so that the engine's prefix cache has none of them.
			again := measure(t, c, c.Grid.Cells()[:2], func(profiling.Log) {})
			for _, l := range append(again, logs...) {
				for _, r := range l.Requests {
					if r.Cached > 0 {
						t.Fatalf("%s %v: %d of %d prompt tokens were cached", api, l.Cell, r.Cached, r.Prompt)
					}
				}
			}
			for _, l := range logs {
				if queued := l.Batch > 6; l.Queued() != queued || l.Running != min(l.Batch, 6) {
					t.Errorf("%s %v: queued %v, ran %d at once", api, l.Cell, l.Queued(), l.Running)
				}
				for i, r := range l.Requests {
					if !r.Cut && (r.Prompt < l.Low || r.Prompt > l.High+8 || r.Output < 10 || r.Output > 30 || len(r.Steps) != int(r.Output)-1) {
						t.Errorf("%s %v: request %+v", api, l.Cell, r)
					}
					if i >= l.Batch && r.End > r.Start && math.Abs(r.Load.N-float64(l.Batch)) > 1e-6 {
						t.Errorf("%s %v: %v requests were in flight during request %d", api, l.Cell, r.Load.N, i)
					}
				}
			}
		})
	}
}

// TestStarvedClient measures through a client that reads whole answers at once, as one that gets no CPU: it must not
// leave out larger cells for a queue that the engine does not have. One that runs in time leaves them out.
func TestStarvedClient(t *testing.T) {
	for slower, want := range map[time.Duration]int{1: 1, 4: 6} {
		synctest.Test(t, func(t *testing.T) {
			c, stop := serveEngine(t, emulator.Config{Profile: testkit.Must(cost.Builtin("h100-llama-3.1-8b"))})
			defer stop()
			c.Transport = wholeAnswers{c.Transport}
			c.After = func(d time.Duration) <-chan time.Time { return time.After(slower * d) }
			c.Seconds, c.Grid = 1, profiling.Grid{Shortest: 100, Longest: 400, Factor: 2, MaxBatch: 4, Output: 20}
			logs := measure(t, c, c.Grid.Cells(), func(profiling.Log) {})
			if len(logs) != want {
				t.Errorf("a clock %d times as slow: %d cells, want %d", slower, len(logs), want)
			}
			for _, l := range logs {
				if l.Starved() != (slower > 1) || !l.Queued() {
					t.Errorf("a clock %d times as slow, %v: ran %d at once, late for %.2f of the time", slower, l.Cell, l.Running, l.Late)
				}
			}
		})
	}
}

// wholeAnswers is a transport whose answers come when they are complete.
type wholeAnswers struct{ http.RoundTripper }

func (w wholeAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	answer.Body = io.NopCloser(bytes.NewReader(text))
	return answer, err
}

// TestEndpointsWithoutExtensions measures one that refuses ignore_eos and reports no usage.
func TestEndpointsWithoutExtensions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Endpoint: "http://engine", Model: "m", Seconds: 1, Grid: profiling.Grid{Shortest: 10, Longest: 20, Factor: 2, MaxBatch: 1, Output: 4}}
		c.Transport = handlerTransport{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body := new(strings.Builder)
			if _, err := fmt.Fprint(body, readAll(r)); err != nil || strings.Contains(body.String(), "ignore_eos") || strings.Contains(body.String(), "stream_options") {
				http.Error(w, "unknown field", http.StatusBadRequest)
				return
			}
			fmt.Fprint(w, strings.Repeat("data: {\"choices\":[{\"text\":\"x\"}]}\n\n", 3)+"data: [DONE]\n\n")
		})}
		p := testkit.Must(New(c))
		warmed := testkit.Must(p.WarmUp(t.Context()))
		if warmed.Usage || warmed.IgnoreEOS || len(warmed.Notes()) != 2 {
			t.Errorf("%+v, notes %q", warmed, warmed.Notes())
		}
	})
}

// TestFailures checks that a cell of an endpoint that fails ends with its error.
func TestFailures(t *testing.T) {
	endless := "data: {\"choices\":[{\"text\":\"x\"}]}\n\n"
	for name, answer := range map[string]func(w http.ResponseWriter){
		`status 503: "full`:              func(w http.ResponseWriter) { http.Error(w, "full", http.StatusServiceUnavailable) },
		"more events than tokens":        func(w http.ResponseWriter) { fmt.Fprint(w, strings.Repeat(endless, 1000)) },
		"the stream ended without":       func(w http.ResponseWriter) { fmt.Fprint(w, endless) },
		"the answer has no token":        func(w http.ResponseWriter) { fmt.Fprint(w, "data: [DONE]\n\n") },
		"an event is not a JSON object:": func(w http.ResponseWriter) { fmt.Fprint(w, "data: x\n\n") },
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			c := Config{Endpoint: "http://engine", Model: "m", Seconds: 1, Grid: profiling.Grid{Shortest: 10, Longest: 20, Factor: 2, MaxBatch: 1, Output: 4}}
			c.Transport = handlerTransport{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if readAll(r); calls < 2 { // the warm-up, and the request before the cell
					calls++
					fmt.Fprint(w, endless+"data: [DONE]\n\n")
					return
				}
				answer(w)
			})}
			p := testkit.Must(New(c))
			testkit.Must(p.WarmUp(t.Context()))
			_, err := p.Run(t.Context(), c.Grid.Cells()[0])
			testkit.WantError(t, err, name)
			synctest.Wait()
		})
	}
}

// TestDiscover reads what vLLM's endpoints say, and refuses others.
func TestDiscover(t *testing.T) {
	for _, test := range []struct {
		models, metrics, want string
		served                Served
	}{
		{`{"data":[{"id":"a","max_model_len":4096},{"id":"b","max_model_len":8192}]}`,
			"# HELP x\nvllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",num_cpu_blocks=\"None\",num_gpu_blocks=\"1024\",num_gpu_blocks_override=\"7\"} 1.0\n", "", Served{"a", 4096, 32768}},
		{`{"data":[{"id":"a"}]}`, "vllm:cache_config_info{block_size=\"99999999999999999999\",num_gpu_blocks=\"1\"} 1", "", Served{"a", 0, 0}},
		{`{"data":[]}`, "", "lists no model", Served{}},
		{`nonsense`, "", "lists no model", Served{}},
	} {
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, map[string]string{"/v1/models": test.models, "/metrics": test.metrics}[r.URL.Path])
		})
		got, err := Discover(t.Context(), Config{Endpoint: "http://engine", Transport: handlerTransport{h}})
		testkit.WantError(t, err, test.want)
		if got != test.served {
			t.Errorf("%s: %+v, not %+v", test.models, got, test.served)
		}
	}
	_, err := Discover(t.Context(), Config{Endpoint: "http://engine", Transport: failing{}})
	testkit.WantError(t, err, "list the models of http://engine")
}

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("refused") }

// TestConfigs checks the errors of New.
func TestConfigs(t *testing.T) {
	good := func() Config {
		return Config{Endpoint: "http://x", Model: "m", Seconds: 1, Grid: profiling.Grid{Shortest: 1, Longest: 2, Factor: 2, MaxBatch: 1, Output: 2}}
	}
	testkit.Must(New(good()))
	for want, edit := range map[string]func(*Config){
		"model are required": func(c *Config) { c.Model = "" },
		"the API is":         func(c *Config) { c.API = "responses" },
		"the time of a cell": func(c *Config) { c.Seconds = math.NaN() },
		"no cell fits":       func(c *Config) { c.Grid.Context = 4 },
		"largest batch":      func(c *Config) { c.Grid.MaxBatch = 0 },
		"prompt lengths":     func(c *Config) { c.Grid.Longest = policies.Tokens(1) },
	} {
		c := good()
		edit(&c)
		_, err := New(c)
		testkit.WantError(t, err, want)
	}
}
