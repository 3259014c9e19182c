package enginecounters

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// fakeEngine has the metrics of an engine that started long ago.
type fakeEngine struct {
	queries, hits, generated atomic.Int64
	failing                  atomic.Bool
	asked                    atomic.Int64
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer e.asked.Add(1)
	if e.failing.Load() || r.URL.Path != "/metrics" {
		http.Error(w, "no", http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total{engine=\"0\"} 1e6\nvllm:prefix_cache_queries_total{engine=\"0\"} %d\n"+
		"vllm:prefix_cache_queries_created{engine=\"0\"} 5\nvllm:prefix_cache_hits_total %d 1700000000\nvllm:generation_tokens_total{engine=\"0\"} %d\n",
		1000+e.queries.Load(), 500+e.hits.Load(), e.generated.Load())
}

// watch runs a Watcher on engines while use runs.
func watch(t *testing.T, engines []*fakeEngine, stages []int, use func()) (Total, error) {
	t.Helper()
	cfg := Config{Stages: func() []int { return stages }}
	for _, e := range engines {
		s := httptest.NewServer(e)
		t.Cleanup(s.Close)
		cfg.Engines = append(cfg.Engines, s.URL)
	}
	w := testkit.Must(New(cfg))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	testkit.WaitFor(t, "the first reading", func() bool {
		return !slices.ContainsFunc(engines, func(e *fakeEngine) bool { return e.asked.Load() == 0 })
	})
	use()
	stop()
	<-done
	return w.Total()
}

// TestTotal checks that what the engines did before does not count, and that the last reading does.
func TestTotal(t *testing.T) {
	engines := []*fakeEngine{{}, {}, {}}
	got, err := watch(t, engines, []int{0, 0, 1}, func() {
		engines[0].queries.Add(400)
		engines[0].hits.Add(100)
		engines[1].queries.Add(100)
		engines[2].generated.Add(1000)
	})
	// The loads of the first stage are 300 and 100.
	if err != nil || got.Queries != 500 || got.Hits != 100 || math.Abs(got.LoadCV-0.5) > 1e-9 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestArrivals checks that loads do not count once the last request has arrived, and that hits do.
func TestArrivals(t *testing.T) {
	engines := []*fakeEngine{{}, {}}
	cfg := Config{Arrivals: 2 * time.Second}
	for _, e := range engines {
		s := httptest.NewServer(e)
		t.Cleanup(s.Close)
		cfg.Engines = append(cfg.Engines, s.URL)
	}
	w := testkit.Must(New(cfg))
	w.sample(t.Context(), 0)
	engines[0].generated.Add(100)
	engines[1].generated.Add(100)
	w.sample(t.Context(), time.Second)
	engines[0].queries.Add(5000)
	engines[0].hits.Add(1000)
	w.sample(t.Context(), 3*time.Second)
	if got, err := w.Total(); err != nil || got.LoadCV != 0 || got.Hits != 1000 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRestart has an engine begin again: what it counts then is new.
func TestRestart(t *testing.T) {
	e := &fakeEngine{}
	e.queries.Store(9000)
	s := httptest.NewServer(e)
	defer s.Close()
	w := testkit.Must(New(Config{Engines: []string{s.URL}}))
	for i, queries := range []int64{9000, 9500, 0, 300} { // above 1000, which it always has
		e.queries.Store(queries)
		w.sample(t.Context(), time.Duration(i)*time.Second)
	}
	if got, err := w.Total(); err != nil || got.Queries != 500+1000+300 || got.Hits != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestFailing checks that counters which cannot be read at the end are an error.
func TestFailing(t *testing.T) {
	e := &fakeEngine{}
	if _, err := watch(t, []*fakeEngine{e}, []int{0}, func() { e.failing.Store(true) }); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("%v", err)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("a watcher of no engine")
	}
}

// TestDecode checks metrics as text.
func TestDecode(t *testing.T) {
	for text, want := range map[string]counters{
		"vllm:generation_tokens_total 3\n":                                                   {generated: 3},
		"vllm:generation_tokens_total{a=\"}\"} 3\nvllm:generation_tokens_total{a=\"b\"} 4\n": {generated: 7},
		"vllm:generation_tokens_total NaN\nvllm:prompt_tokens_total -1\n":                    {},
		"vllm:generation_tokens_total\nvllm:prompt_tokens_total{\n":                          {},
		"vllm:generation_tokens_total 0\nvllm:prompt_tokens_total 8":                         {prompt: 8},
	} {
		if got, _ := decode([]byte(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
	if _, ok := decode([]byte("sglang:num_running_reqs 1\n")); ok {
		t.Error("metrics without the counters were taken")
	}
	if got := (counters{prompt: 8}).computed(); got != 8 {
		t.Errorf("without a prefix cache %v prompt tokens are computed", got)
	}
}

// FuzzDecode checks that no metrics break the decoder.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("vllm:generation_tokens_total{a=\"b\"} 3\nvllm:prefix_cache_hits_total 4 5\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, _ := decode(text)
		for _, v := range []float64{c.prompt, c.queries, c.hits, c.generated} {
			if !(v >= 0) {
				t.Errorf("%q: %+v", text, c)
			}
		}
	})
}
