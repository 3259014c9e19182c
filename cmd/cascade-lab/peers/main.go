// Command peers makes the same decisions in this policy host and in others, and prints the cost
// of each, side by side: which of 16 receivers gets a request, and whether a plan may replace
// another. "make bench-lab WHAT=peers" runs it.
//
// First, all peers must give the same answers to all calls. Then they are measured in turns, so
// that other load on the host affects all of them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	_ "github.com/open-policy-agent/opa/v1/features/wasm" // rego.Target("wasm")

	"github.com/cascadeinfer/cascade/wasm/host"
)

func main() {
	rounds := flag.Int("rounds", 100, "how often each peer has its turn")
	turn := flag.Duration("turn", 5*time.Millisecond, "how long a turn takes, about")
	flag.Parse()
	if err := run(context.Background(), os.Stdout, *rounds, *turn); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// peer makes decisions.
type peer struct {
	name string
	// ask answers call n.
	ask func(n int) (string, error)
}

func run(ctx context.Context, out io.Writer, rounds int, turn time.Duration) (err error) {
	b := &builder{watch: host.NewWatchdog()}
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- b.watch.Run(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-watched)
	}()
	if b.dir, err = os.MkdirTemp("", "cascade-peers"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close(), os.RemoveAll(b.dir)) }()
	r := rand.New(rand.NewPCG(1, 2))
	bids, err := choices(r)
	if err != nil {
		return err
	}
	peers, err := choosers(ctx, b, bids)
	if err != nil {
		return err
	}
	if err := table(out, fmt.Sprintf("one of %d receivers", receivers), peers, len(bids), rounds, turn); err != nil {
		return err
	}
	plans, err := replans(r)
	if err != nil {
		return err
	}
	if peers, err = guards(ctx, b, plans); err != nil {
		return err
	}
	return table(out, "may this plan be", peers, len(plans), rounds, turn)
}

// cost has the durations of a peer's turns.
type cost struct {
	batch   int       // calls in a turn
	times   []float64 // ns per call, for each turn
	mallocs uint64
	bytes   uint64
	calls   int
}

// table compares the peers' answers, and measures the peers.
func table(out io.Writer, title string, peers []peer, questions, rounds int, turn time.Duration) error {
	for n := range questions {
		want, err := peers[0].ask(n)
		if err != nil {
			return fmt.Errorf("%s: %w", peers[0].name, err)
		}
		for _, p := range peers[1:] {
			if got, err := p.ask(n); err != nil || got != want {
				return fmt.Errorf("question %d: %s says %q, %v; %s says %q", n, p.name, got, err, peers[0].name, want)
			}
		}
	}
	costs := make([]cost, len(peers))
	for i, p := range peers {
		begin := time.Now()
		for n := range questions {
			if _, err := p.ask(n); err != nil {
				return err
			}
		}
		costs[i].batch = max(questions, int(float64(questions)*float64(turn)/float64(time.Since(begin)+1)))
	}
	var before, after runtime.MemStats
	for range rounds {
		for i, p := range peers {
			c := &costs[i]
			runtime.ReadMemStats(&before)
			begin := time.Now()
			for n := range c.batch {
				if _, err := p.ask(n % questions); err != nil {
					return fmt.Errorf("%s: %w", p.name, err)
				}
			}
			c.times = append(c.times, float64(time.Since(begin))/float64(c.batch))
			runtime.ReadMemStats(&after)
			c.mallocs, c.bytes, c.calls = c.mallocs+after.Mallocs-before.Mallocs, c.bytes+after.TotalAlloc-before.TotalAlloc, c.calls+c.batch
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintf(w, "| %s\t| ns, median\t| ns, 5th percentile\t| allocs\t| bytes\t|\n|---\t|---:\t|---:\t|---:\t|---:\t|\n", title)
	for i, p := range peers {
		c := &costs[i]
		slices.Sort(c.times)
		fmt.Fprintf(w, "| %s\t| %.0f\t| %.0f\t| %.1f\t| %.0f\t|\n", p.name, c.times[len(c.times)/2], c.times[len(c.times)/20],
			float64(c.mallocs)/float64(c.calls), float64(c.bytes)/float64(c.calls))
	}
	fmt.Fprintf(w, "\n%d rounds; %d questions, answered alike by all\n\n", rounds, questions)
	return w.Flush()
}

// builder builds modules, and keeps what must be closed.
type builder struct {
	dir    string
	watch  *host.Watchdog
	closes []func() error
}

func (b *builder) later(f func() error) { b.closes = append(b.closes, f) }

func (b *builder) close() error {
	var errs []error
	for _, f := range slices.Backward(b.closes) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// golang builds the main package of a Go file as "make plugins" does.
func (b *builder) golang(file string) ([]byte, error) {
	cmd := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-w -buildid=", "-o", filepath.Join(b.dir, "go.wasm"), filepath.Base(file))
	cmd.Dir = filepath.Dir(file)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOWASM=", "GOFLAGS=", "CGO_ENABLED=0")
	return b.output(cmd, "go.wasm")
}

// c builds a file in C with $ZIG, or the wheel that "make zig" installs.
func (b *builder) c(file string) ([]byte, error) {
	root := filepath.Join("..", "..", "..")
	zig := []string{filepath.Join(root, ".cache", "zig", "bin", "python"), "-m", "ziglang"}
	if path := os.Getenv("ZIG"); path != "" {
		zig = []string{path}
	}
	args := append(zig[1:], "cc", "-target", "wasm32-freestanding", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-nostdlib",
		"-I", filepath.Join(root, "wasm", "guest", "c"), "-Wl,--no-entry", "-Wl,--strip-debug", "-o", filepath.Join(b.dir, "c.wasm"), filepath.Join("c", file))
	return b.output(exec.Command(zig[0], args...), "c.wasm")
}

func (b *builder) output(cmd *exec.Cmd, file string) ([]byte, error) {
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, text)
	}
	return os.ReadFile(filepath.Join(b.dir, file))
}
