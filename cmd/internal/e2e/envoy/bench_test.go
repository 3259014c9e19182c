package envoy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// asService makes this binary the length service of the benchmark's view. It is a separate process,
// so that its cost can be separated from that of the client and the upstreams.
const asService = "CASCADE_ESTIMATORS_SERVICE"

func serveAlone() {
	t := &lone{}
	address := lengthService(t, view(), 0)
	fmt.Println(address)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
	t.end()
}

// lone implements the parts of testing.TB that a process without a test needs.
type lone struct {
	testing.TB
	cleanup []func()
}

func (l *lone) Helper()          {}
func (l *lone) Cleanup(f func()) { l.cleanup = append(l.cleanup, f) }
func (l *lone) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

func (l *lone) end() {
	for _, f := range slices.Backward(l.cleanup) {
		f()
	}
}

// startService starts the length service and returns its address and process.
func startService(b *testing.B) (address string, pid int) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asService+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	testkit.NoError(b, err)
	out, err := cmd.StdoutPipe()
	testkit.NoError(b, err)
	testkit.NoError(b, cmd.Start())
	b.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	testkit.NoError(b, err)
	return strings.TrimSpace(line), cmd.Process.Pid
}

// tick is the unit of /proc's times on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// cpu returns the CPU time that a process has used so far, or 0 if unknown.
func cpu(pid int) time.Duration {
	if pid == 0 {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may contain blanks.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var sum time.Duration
	for _, f := range fields[11:13] { // utime, stime
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		sum += time.Duration(n) * tick
	}
	return sum
}

// rss returns the memory of a process in MiB, or 0 if unknown.
func rss(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		return 0
	}
	return float64(pages) * float64(os.Getpagesize()) / (1 << 20)
}

// concurrency is the number of concurrent requests of the benchmark.
const concurrency = 16

// BenchmarkEstimators compares the three estimators: with bodies with and without a length to a
// host of one model, and with bodies with one to a host of several models, for which content-length
// has no answer. Each estimator has an Envoy of its own, and they take turns, so that other load on
// the machine affects all of them alike. The client, Envoy, the length service and the upstreams
// share the machine; CPU is measured per process.
func BenchmarkEstimators(b *testing.B) {
	estimators := []resources.Estimator{resources.ContentLength, resources.ExtProc, resources.Wasm}
	harnesses := make(map[resources.Estimator]*harness)
	service := make(map[resources.Estimator]int)
	for _, e := range estimators {
		v := view()
		v.Settings.Estimator = e
		switch e {
		case resources.ExtProc:
			v.Settings.LengthService, service[e] = startService(b)
		case resources.Wasm:
			v.Settings.Module = module(b)
		}
		r := startHarness(b, v)
		r.client.CloseIdleConnections()
		r.client.Transport = &http.Transport{MaxIdleConnsPerHost: concurrency, MaxConnsPerHost: concurrency}
		b.Cleanup(r.client.CloseIdleConnections)
		harnesses[e] = r
	}
	for _, size := range []int{200, 220 << 10, 2 << 20} {
		for _, way := range []struct {
			name, host string
			wrap       func(io.Reader) io.Reader
		}{
			{"sized", "m.test", func(r io.Reader) io.Reader { return r }},
			{"chunked", "m.test", func(r io.Reader) io.Reader { return chunked{r} }},
			{"shared", "else.test", func(r io.Reader) io.Reader { return r }},
		} {
			for _, e := range estimators {
				if e == resources.ContentLength && way.name == "shared" {
					continue
				}
				b.Run(fmt.Sprintf("%d/%s/%s", size, way.name, e), func(b *testing.B) {
					r := *harnesses[e]
					r.t = b
					body := sized("m", size)
					r.measure(b, service[e], func() (served, error) {
						return r.send("POST", way.host, way.wrap(bytes.NewReader(body)))
					})
				})
			}
		}
	}
}

// measure sends requests and reports their cost.
func (r *harness) measure(b *testing.B, service int, send func() (served, error)) {
	b.SetParallelism(max(1, concurrency/runtime.GOMAXPROCS(0)))
	var mu sync.Mutex
	var all []time.Duration
	envoy, other := cpu(r.envoy.PID()), cpu(service)
	b.RunParallel(func(pb *testing.PB) {
		var mine []time.Duration
		for pb.Next() {
			began := time.Now()
			got, err := send()
			mine = append(mine, time.Since(began))
			if err != nil || got.Status != 200 || got.By == "" {
				b.Errorf("got %+v, %v", got, err)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, mine...)
	})
	n := float64(len(all))
	perRequest := func(d time.Duration) float64 { return float64(d.Microseconds()) / n }
	slices.Sort(all)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(n/b.Elapsed().Seconds(), "req/s")
	b.ReportMetric(all[len(all)/2].Seconds()*1e3, "p50-ms")
	b.ReportMetric(all[len(all)*99/100].Seconds()*1e3, "p99-ms")
	b.ReportMetric(perRequest(cpu(r.envoy.PID())-envoy), "envoy-µs/req")
	b.ReportMetric(perRequest(cpu(service)-other), "service-µs/req")
	b.ReportMetric(rss(r.envoy.PID()), "envoy-MiB")
}
