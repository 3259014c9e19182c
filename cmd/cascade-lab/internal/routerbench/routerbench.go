// Package routerbench is "cascade-lab routers": it replays the same requests through Cascade and through the routers
// that users would pick instead, each in front of the same engines, and compares what clients see.
//
//	cascade-lab routers -trace mixed -rates 10,20 -contestants cascade,envoy-least-request -envoy PATH
//
// It emulates the engines, on real sockets and new ones for each run, or uses those that
// -engines names. Each run is stored in -out and not made again unless its inputs change, so
// that an interrupted matrix continues; tables, figures and a plot are written after every
// run. "make bench-lab WHAT=routers" and "make bench-lab WHAT=routers-all" run it with the pinned wheels.
//
// Latencies are comparable only on a machine that has CPU to spare: a run with less than 30 %
// idle is void. -speed below 1 slows engines and arrivals down, and so needs less.
package routerbench

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/contestant"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/runstore"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
)

// slowBelow is the number of CPUs below which emulated engines run at half speed.
const slowBelow = 8

// Run parses the arguments and runs the matrix.
func Run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("routers", flag.ContinueOnError)
	var (
		source      = f.String("trace", "mixed", "a shipped mix, or a trace file: arrival_ms,input_tokens,output_tokens CSV or Mooncake JSONL, gzipped or not")
		spread      = f.Duration("spread", 0, "move each arrival later by a random part of this, for traces with a coarse clock (Mooncake: 3s)")
		sample      = f.Int("one-conversation-in", 1, "keep one conversation of a trace in so many, so that a run of as many requests finds more turns whose prefixes it has seen")
		rates       = f.String("rates", "10,20", "loads in requests/s of engine time, divided by commas")
		contestants = f.String("contestants", "", "names divided by commas, the one to compare with the others first; empty: all")
		seeds       = f.Int("seeds", interval.MinRuns, "runs of each contestant at each load, with other requests each")
		requests    = f.Int("requests", 500, "requests of each run")
		replicas    = f.Int("replicas", 4, "emulated engines")
		engines     = f.String("engines", "", "base URLs of engines that run already, divided by commas, instead of emulated ones; they need -speed 1")
		keep        = f.Bool("keep-caches", false, "do not empty the prefix caches of -engines between runs")
		modelName   = f.String("model", "llama-3.1-8b", "model to ask for")
		length      = f.Int64("context", 131072, "the model's context in tokens")
		longest     = f.Int64("max-length", 0, "drop requests longer than this, prompt and answer together; 0: longer than the context")
		profile     = f.String("profile", "rtxpro6000-llama-3.1-8b", "cost profile: of emulated engines, and by which Cascade plans; a built-in one's name or a JSON file")
		pace        = f.Float64("speed", 0, "of engines and arrivals, relative to real time; 0: 1, or 0.5 on a machine of fewer than 8 CPUs")
		out         = f.String("out", "out/bench-routers", "directory of runs, tables and plot")
		limit       = f.Duration("limit", 0, "begin no run that would end later than this; the same command goes on. 0: none")
		void        = f.Bool("repeat-void", false, "make void runs again")
		stale       = f.Bool("repeat-stale", false, "make runs of another build of this program again")
		beside      = f.Bool("beside-niced", false, "count the CPU time of niced processes as idle: work of the lowest priority (nice 19) runs beside on purpose")
		verbose     = f.Bool("v", false, "log what routers and fleets report")
		tools       contestant.Tools
	)
	f.StringVar(&tools.Envoy, "envoy", "", "path of Envoy; it carries Cascade's traffic, too. Without it the embedded proxy does")
	f.StringVar(&tools.VLLM, "vllm-python", "", "path of the Python interpreter that has vllm_router")
	f.StringVar(&tools.SGLang, "sglang-python", "", "path of the Python interpreter that has sglang_router")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	m := matrix{
		seeds: *seeds, speed: *pace, replicas: *replicas, tools: tools, dir: *out, keepCaches: *keep, limit: *limit, besideNiced: *beside,
		model: config.Model{Name: *modelName, Context: policies.Tokens(*length), Profile: *profile},
		again: repeat{void: *void, stale: *stale}, log: slog.New(slog.DiscardHandler), stderr: os.Stderr, stdout: os.Stdout,
	}
	if *verbose {
		m.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	if m.rates, err = parseRates(*rates); err != nil {
		return err
	}
	names := split(*contestants)
	if len(names) == 0 {
		for _, c := range contestant.All() {
			names = append(names, c.Name)
		}
	}
	if m.contestants, err = contestant.Named(names); err != nil {
		return err
	}
	for _, u := range split(*engines) {
		m.external = append(m.external, contestant.Replica{URL: strings.TrimSuffix(u, "/")})
	}
	if m.speed == 0 {
		m.speed = 1
		if len(m.external) == 0 && runtime.NumCPU() < slowBelow {
			m.speed = 0.5
		}
	}
	if err := m.validate(); err != nil {
		return err
	}
	if m.workload, err = openWorkload(workload{name: *source, requests: *requests, longest: policies.Tokens(cmp.Or(*longest, *length)), spread: *spread, sample: *sample}); err != nil {
		return err
	}
	if m.again.build, err = runstore.OfProgram(); err != nil {
		return err
	}
	return m.run(ctx)
}

// validate checks what the flags say.
func (m *matrix) validate() error {
	switch {
	case m.seeds < 1:
		return fmt.Errorf("-seeds %d: must be at least 1, and %d for a verdict", m.seeds, interval.MinRuns)
	case m.limit < 0:
		return fmt.Errorf("-limit %v: must not be negative", m.limit)
	case m.replicas < 1:
		return fmt.Errorf("-replicas %d: must be at least 1", m.replicas)
	case !(m.speed > 0):
		return fmt.Errorf("-speed %v: must be positive", m.speed)
	case len(m.external) > 0 && m.speed != 1:
		return fmt.Errorf("-speed %v: engines that run already need -speed 1", m.speed)
	}
	return nil
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

func parseRates(list string) (out []float64, err error) {
	for _, s := range split(list) {
		rate, err := strconv.ParseFloat(s, 64)
		if err != nil || !(rate > 0) {
			return nil, fmt.Errorf("-rates %q: write positive numbers divided by commas", list)
		}
		out = append(out, rate)
	}
	if len(out) == 0 {
		return nil, errors.New("-rates: name at least one load")
	}
	return out, nil
}

// runsDir is where the runs of a matrix are stored.
func (m *matrix) runsDir() string { return filepath.Join(m.dir, "runs") }

// minutes prints a duration.
func minutes(d time.Duration) string {
	if d < 2*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}
