package tcp

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// openPuller returns a layout, and two ends of it with an open puller.
func openPuller(b *testing.B, bytes int64, c Config) (transport.Layout, transporttest.Pair, transport.Puller) {
	l := transporttest.ScatteredLayout(bytes)
	pair := transporttest.Pair{Source: newEnd(b, l, c), Target: newEnd(b, l, c)}
	return l, pair, transporttest.Start(b, pair).Open()
}

// BenchmarkPull compares a pull over loopback with a plain copy of the same
// blocks.
func BenchmarkPull(b *testing.B) {
	for _, bytes := range []int64{32 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("block=%dKiB", bytes>>10), func(b *testing.B) {
			l, pair, p := openPuller(b, bytes, Config{})
			transporttest.CompareMethods(b, l, pair.Source.Memory, pair.Target.Memory, map[string]transporttest.Method{
				"verified": transporttest.PullMethod(b.Context(), p),
			})
		})
	}
}

// BenchmarkPeers compares a pull with UCX's TCP, as ucx_perftest measures its put: one
// buffer repeatedly, unverified. It is skipped if ucx_perftest is neither in PATH nor
// named by $UCX_PERFTEST.
func BenchmarkPeers(b *testing.B) {
	perftest := os.Getenv("UCX_PERFTEST")
	if perftest == "" {
		perftest = "ucx_perftest"
	}
	if _, err := exec.LookPath(perftest); err != nil {
		testkit.Skip(b, testkit.Unavailable{What: err.Error(), Remedy: "install UCX (Debian: apt-get install ucx-utils), or set UCX_PERFTEST"})
	}
	for _, bytes := range []int64{32 << 10, 256 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("block=%dKiB", bytes>>10), func(b *testing.B) {
			l, pair, p := openPuller(b, bytes, Config{})
			var ours, theirs []time.Duration
			transporttest.CompareMethods(b, l, pair.Source.Memory, pair.Target.Memory, map[string]transporttest.Method{
				"tcp": func(plan transport.Plan) (time.Duration, error) {
					start := time.Now()
					_, err := p.Pull(b.Context(), plan)
					ours = append(ours, time.Since(start))
					return ours[len(ours)-1], err
				},
				"ucx": func(plan transport.Plan) (time.Duration, error) {
					d, err := runUCX(b, perftest, bytes, len(plan.Src))
					theirs = append(theirs, d)
					return d, err
				},
			})
			b.ReportMetric(transporttest.Median(theirs).Seconds()/transporttest.Median(ours).Seconds(), "tcp/ucx")
		})
	}
}

// runUCX makes ucx_perftest put n blocks of this size over TCP, and returns how long that
// took by its own measurement.
func runUCX(b *testing.B, perftest string, bytes int64, n int) (time.Duration, error) {
	port := freePort(b)
	run := func(extra ...string) *exec.Cmd {
		c := exec.CommandContext(b.Context(), perftest, append(extra, "-p", port, "-t", "ucp_put_bw", "-f", "-v",
			"-s", strconv.FormatInt(bytes, 10), "-n", strconv.Itoa(n), "-w", "20")...)
		c.Env = append(os.Environ(), "UCX_TLS=tcp,self", "UCX_WARN_UNUSED_ENV_VARS=n")
		return c
	}
	server := run()
	if err := server.Start(); err != nil {
		return 0, err
	}
	defer func() {
		server.Process.Kill()
		server.Wait()
	}()
	var failed error
	for range 50 { // until the server listens
		time.Sleep(20 * time.Millisecond)
		out, err := run("127.0.0.1").Output()
		if err == nil {
			return parseUCXDuration(out, bytes, n)
		}
		failed = err
	}
	return 0, failed
}

// parseUCXDuration reads the last line of ucx_perftest's CSV: iterations, three
// overheads, then the average and the overall bandwidth in MiB/s.
func parseUCXDuration(out []byte, size int64, n int) (time.Duration, error) {
	var last string
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if fields := strings.Split(s.Text(), ","); len(fields) >= 6 {
			last = fields[5]
		}
	}
	rate, err := strconv.ParseFloat(strings.TrimSpace(last), 64)
	if err != nil || rate <= 0 {
		return 0, fmt.Errorf("ucx_perftest: no bandwidth in %q", out)
	}
	return time.Duration(float64(size) * float64(n) / (rate * (1 << 20)) * float64(time.Second)), nil
}

func freePort(b *testing.B) string {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	testkit.NoError(b, err)
	return port
}
