package sim

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

var skewTable = flag.String("skew-table", "", "LLMServingSim's table of decode skew of that GPU (csv.gz), for the case of measured attention")

var vllmLog = flag.String("vllm-log", "", "LLMServingSim's request log of a real vLLM run on RTX PRO 6000 (jsonl.gz), to compare with")

// figures are those that validation compares.
type figures struct{ ttft, tpot, e2e, throughput []float64 }

func (f *figures) add(ttft, last float64, tokens int64) {
	f.ttft, f.e2e = append(f.ttft, ttft), append(f.e2e, last)
	if tokens > 1 {
		f.tpot = append(f.tpot, (last-ttft)/float64(tokens-1))
	}
	f.throughput = append(f.throughput, float64(tokens)/last)
}

// compare logs and checks the errors of p50 and p95.
func compare(t *testing.T, got, want figures, p50, p95 float64) {
	t.Helper()
	for _, m := range []struct {
		name      string
		got, want []float64
	}{{"TTFT", got.ttft, want.ttft}, {"TPOT", got.tpot, want.tpot}, {"end-to-end", got.e2e, want.e2e}, {"tokens/s of a request", got.throughput, want.throughput}} {
		for _, q := range []struct{ at, within float64 }{{0.5, p50}, {0.95, p95}} {
			at := func(values []float64) float64 {
				values = slices.Sorted(slices.Values(values))
				return values[int(q.at*float64(len(values)))]
			}
			a, b := at(m.got), at(m.want)
			t.Logf("%s p%.0f: simulated %.4f, measured %.4f (%+.1f %%)", m.name, q.at*100, a, b, (a/b-1)*100)
			if math.Abs(a/b-1) > q.within {
				t.Errorf("%s p%.0f is more than %.0f %% off", m.name, q.at*100, q.within*100)
			}
		}
	}
}

// TestAgainstVLLM simulates the requests of a real run, whose log is not in the repository: p50 within
// 10 %, p95 within 20 %, for every case of mixed-length attention that was measured or is usual.
func TestAgainstVLLM(t *testing.T) {
	if *vllmLog == "" {
		testkit.Skip(t, testkit.Unavailable{What: "the log of a real run is not in the repository", Remedy: "give its file: -vllm-log FILE"})
	}
	f := testkit.Must(os.Open(*vllmLog))
	defer f.Close()
	z := testkit.Must(gzip.NewReader(f))
	type logged struct {
		Input  policies.Tokens `json:"input_toks"`
		Output policies.Tokens `json:"output_toks"`
		Queued float64         `json:"queued_ts"`
		First  float64         `json:"first_token_ts"`
		Last   float64         `json:"last_token_ts"`
	}
	var log []logged
	for lines := bufio.NewScanner(z); lines.Scan(); {
		var r logged
		testkit.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		log = append(log, r)
	}
	slices.SortStableFunc(log, func(a, b logged) int { return cmp.Compare(a.Queued, b.Queued) })
	var want figures
	end, tokens := 0.0, 0.0
	for _, r := range log {
		want.add(r.First-r.Queued, r.Last-r.Queued, int64(r.Output))
		end, tokens = math.Max(end, r.Last-log[0].Queued), tokens+float64(r.Output)
	}
	cases, skew := []cost.AttentionCase{cost.SumOnly, cost.TenPercent}, (*cost.SkewTable)(nil)
	if *skewTable != "" {
		f := testkit.Must(os.Open(*skewTable))
		defer f.Close()
		cases, skew = append(cases, cost.MeasuredSkew), testkit.Must(cost.ReadSkew(f))
	}
	for _, attention := range cases {
		t.Run(attention.String(), func(t *testing.T) {
			var source requests
			for _, r := range log {
				source = append(source, trace.Request{At: time.Duration((r.Queued - log[0].Queued) * 1e9), Input: r.Input, Output: r.Output})
			}
			// At most 128 requests ran at once in that log.
			c := Config{Profile: testkit.Must(cost.Builtin("rtxpro6000-llama-3.1-8b")), MaxBatch: 128, MaxBatchedTokens: 2048, NoPrefixCache: true, Attention: attention, Skew: skew}
			result, records := run(t, c, &source)
			var got figures
			for _, r := range records {
				got.add(r.TTFT, r.Last, r.Tokens)
			}
			compare(t, got, want, 0.10, 0.20)
			a, b := tokens/result.Engine.Seconds, tokens/end
			t.Logf("tokens/s: simulated %.0f, measured %.0f (%+.1f %%)", a, b, (a/b-1)*100)
			t.Logf("outside of the table: %d of %d iterations", result.Batches.Outside, result.Batches.Priced)
			if math.Abs(a/b-1) > 0.1 {
				t.Error("the throughput is more than 10 % off")
			}
		})
	}
}

// TestAgainstEmulatedFleet replays a mix over HTTP on emulated engines behind a proxy that takes one
// after the other, and simulates the same: p50 and p95 within 1 %. The engines, the proxy and the client run on
// synctest's clock, so that the machine's load does not count.
func TestAgainstEmulatedFleet(t *testing.T) {
	testkit.SkipUnderRace(t)
	synctest.Test(t, func(t *testing.T) {
		const replicas = 3
		g, _ := trace.Named("chat")
		g.Requests, g.Rate, g.Seed = 250, 60, 3
		mix := testkit.Must(g.Generate())
		h200 := testkit.Must(cost.Builtin("h200-llama-3.1-8b"))

		ctx, cancel := context.WithCancel(t.Context())
		var engines errgroup.Group
		var handlers []http.Handler
		for range replicas {
			e := testkit.Must(emulator.New(emulator.Config{Model: "m", Profile: h200}))
			engines.Go(func() error { return e.Run(ctx) })
			handlers = append(handlers, e.Handler())
		}
		next := 0 // requests begin one after the other: they are due at different times
		listener := testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:80"))
		front := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next++
			handlers[(next-1)%replicas].ServeHTTP(w, r)
		})}
		go front.Serve(listener)
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return listener.Dial(ctx) }
		r := testkit.Must(replay.New(replay.Config{
			Target: "http://fleet", Model: "m", Requests: mix, Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 1000},
			CPU: func() (replay.CPUTimes, error) { return replay.CPUTimes{}, errors.ErrUnsupported },
		}))
		real, err := r.Run(ctx)
		if err != nil || real.Failed() > 0 || real.Completed != len(mix) {
			t.Fatalf("replay: %v; %d completed, %+v", err, real.Completed, real.Failures)
		}
		source := requests(mix)
		_, records := run(t, Config{Profile: h200, Replicas: replicas}, &source)
		var got, want figures
		for i := range records {
			got.add(records[i].TTFT, records[i].Last, records[i].Tokens)
			want.add(real.Records[i].TTFT, real.Records[i].Last, real.Records[i].Tokens)
		}
		compare(t, got, want, 0.01, 0.01)
		cancel()
		if err := errors.Join(engines.Wait(), front.Close()); err != nil {
			t.Error(err)
		}
	})
}
