package inprocess

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
)

// overloadKinds are the requests of the overload tests: bytes of the prompt, and output.
var overloadKinds = [][2]int{{500, 60}, {2000, 150}, {8000, 300}}

// inTime is how many times longer than on an idle replica a request may take to count.
const inTime = 10

// outcome is what became of the requests of one rate.
type outcome struct {
	sent, inTime, late, refused, failed int
	worst                               float64 // latency over that on an idle replica
}

// overload is a fleet of replicas whose KV caches hold some forty requests each.
func overload(t *testing.T, replicas int, admission string) (r *overloadedFleet, alone [3]time.Duration) {
	r = newOverloadedFleet(t, replicas, 2, admission)
	for i, kind := range overloadKinds {
		for n := range 2 { // the first one teaches the front end the shape of answers
			begun := time.Now()
			status, body := r.complete(t.Context(), prompt(kind[0]+n, kind[1]))
			if status != http.StatusOK {
				t.Fatalf("status %d: %s", status, body)
			}
			alone[i] = time.Since(begun)
		}
	}
	return r, alone
}

func newOverloadedFleet(t *testing.T, replicas int, speed float64, admission string) *overloadedFleet {
	r := new(overloadedFleet)
	r.fleetHarness = newFleetHarness(t, harnessConfig{replicas: replicas, front: r.countRescues, edit: func(f *config.Fleet) {
		f.Speed, f.Overload.Admission = speed, admission
		f.Models[0].Profile, f.Models[0].KVTokens, f.Models[0].Context = "rtxpro6000-llama-3.1-8b", 32_768, 8192
	}})
	return r
}

// overloadedFleet is a fleet whose front ends count the streams that lost their engine.
type overloadedFleet struct {
	*fleetHarness
	rescues atomic.Int64
}

func (r *overloadedFleet) countRescues(_ string, c *frontend.Config) {
	report := c.OnRescue
	c.OnRescue = func(s frontend.Rescue) {
		r.rescues.Add(1)
		report(s)
	}
}

// lost returns how often front ends have taken an engine for hung, or for lost with a stream.
func (r *overloadedFleet) lost() int {
	n := int(r.rescues.Load())
	for _, f := range r.fronts {
		n += int(f.Status().EngineHangs)
	}
	return n
}

func (r *overloadedFleet) complete(ctx context.Context, body []byte) (status int, answer []byte) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.URL()+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return 0, []byte(err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.HTTP.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "" {
		return 0, answer
	}
	return resp.StatusCode, answer
}

// offer sends requests at a mean rate per second for some time, whatever the answers are, and
// returns what became of them.
func (r *overloadedFleet) offer(rate float64, lasts time.Duration, alone [3]time.Duration, seed uint64) (o outcome) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	var wg sync.WaitGroup
	begun, at := time.Now(), time.Duration(0)
	for n := 0; at < lasts; n++ {
		time.Sleep(time.Until(begun.Add(at)))
		kind := rng.IntN(len(overloadKinds))
		body := prompt(overloadKinds[kind][0]+rng.IntN(100), overloadKinds[kind][1])
		body = bytes.Replace(body, []byte(`"prompt":"`), fmt.Appendf(nil, `"prompt":"%d-%d `, seed, n), 1) // no shared prefix
		wg.Go(func() {
			sent := time.Now()
			status, answer := r.complete(context.Background(), body)
			slow := float64(time.Since(sent)) / float64(alone[kind])
			mu.Lock()
			defer mu.Unlock()
			switch o.sent++; {
			case status == http.StatusTooManyRequests:
				o.refused++
			case status != http.StatusOK:
				o.failed++
				r.T.Logf("status %d: %.200s", status, answer)
			case slow <= inTime:
				o.inTime++
			default:
				o.late++
			}
			if status == http.StatusOK {
				o.worst = max(o.worst, slow)
			}
		})
		at += time.Duration(rng.ExpFloat64() / rate * float64(time.Second))
	}
	wg.Wait()
	return o
}

// TestGoodput offers a replica, and a fleet of four, more than they can serve: the requests per
// second that end in time stay at what they are at their best. CASCADE_BENCH_OVERLOAD=off shows
// replicas that take all.
func TestGoodput(t *testing.T) {
	testkit.SkipSlow(t)
	const lasts = 20 * time.Second
	admission := config.AdmissionOn
	if os.Getenv("CASCADE_BENCH_OVERLOAD") == "off" {
		admission = config.AdmissionOff
	}
	for _, replicas := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) { measureGoodput(t, replicas, admission, lasts) })
	}
}

func measureGoodput(t *testing.T, replicas int, admission string, lasts time.Duration) {
	r, alone := overload(t, replicas, admission)
	begun, lasted := time.Now(), lasts
	saturated := r.offer(40*float64(replicas), lasts, alone, 1)
	if admission == config.AdmissionOff {
		lasted = time.Since(begun) // replicas that take all finish most of it afterwards
	}
	capacity := float64(saturated.inTime+saturated.late) / lasted.Seconds()
	var table strings.Builder
	fmt.Fprintf(&table, "%d replicas; alone: %v; capacity %.1f requests/s; admission %s\n%8s %8s %9s %6s %8s %7s %9s %9s\n", replicas, alone, capacity, admission,
		"offered", "sent", "in time/s", "late", "refused", "failed", "slowest", "lost")
	best, goodput := 0.0, map[float64]float64{}
	for i, load := range []float64{0.5, 0.8, 1, 1.5, 2, 4} {
		before := r.lost()
		o := r.offer(load*capacity, lasts, alone, uint64(i+2))
		goodput[load] = float64(o.inTime) / lasts.Seconds()
		best = max(best, goodput[load])
		lost := r.lost() - before
		fmt.Fprintf(&table, "%7.1fx %8d %9.1f %6d %8d %7d %8.1fx %9d\n", load, o.sent, goodput[load], o.late, o.refused, o.failed, o.worst, lost)
		if lost > 0 {
			t.Errorf("replicas that live were taken for lost %d times at %.1f times the capacity", lost, load)
		}
		if o.failed > 0 && admission == config.AdmissionOn {
			t.Errorf("%d requests failed at %.1f times the capacity", o.failed, load)
		}
	}
	t.Logf("\n%s", &table)
	for load, g := range goodput {
		if load > 1 && g < 0.9*best && admission == config.AdmissionOn {
			t.Errorf("goodput %.1f requests/s at %.1f times the capacity, less than 90 %% of %.1f", g, load, best)
		}
	}
}

// TestOverloadLosesNoReplica offers a replica that takes all requests four times what it can hold: however they wait, it
// makes progress, and so it is never taken for hung or away, and no stream for lost.
func TestOverloadLosesNoReplica(t *testing.T) {
	t.Parallel()
	r := newOverloadedFleet(t, 1, 8, config.AdmissionOff)
	const requests = 160
	rng := rand.New(rand.NewPCG(1, 1))
	var wg sync.WaitGroup
	for n := range requests {
		body := prompt(2000+rng.IntN(4000), 100)
		body = bytes.Replace(body, []byte(`"prompt":"`), fmt.Appendf(nil, `"prompt":"%d `, n), 1) // no shared prefix
		wg.Go(func() {
			if status, answer := r.complete(context.Background(), body); status != http.StatusOK {
				t.Errorf("status %d: %.200s", status, answer)
			}
		})
	}
	wg.Wait()
	if n := r.lost(); n > 0 {
		t.Errorf("a replica that lives was taken for lost %d times", n)
	}
	s := r.server.Load().Status()
	for _, c := range s.History {
		if c.Epoch > 1 {
			t.Errorf("the plan changed: %s", c.Reason)
		}
	}
	if !allHealthy(s) {
		t.Error(summarize(s))
	}
}
