package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/gpuset"
	"github.com/cascadeinfer/cascade/cmd/internal/stageplan"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
)

// emulationFlags describe a fleet of emulated replicas.
type emulationFlags struct {
	replicas int
	profile  string
	context  int64
	speed    float64
	window   time.Duration
	tp       int
	envoy    string
	device   string
	moves    string
	prompt   string
	out      string
}

// flags adds the flags of the fleet, with a default speed.
func (e *emulationFlags) flags(c *cobra.Command, speed float64) {
	f := c.Flags()
	f.IntVar(&e.replicas, "replicas", 8, "emulated replicas")
	f.StringVar(&e.profile, "profile", "rtxpro6000-llama-3.1-8b", "cost profile of the replicas (see \"cascade profile\")")
	f.Int64Var(&e.context, "context", 131072, "the model's context in tokens; longer requests are dropped")
	f.Float64Var(&e.speed, "speed", speed, "run engines, arrivals and the planner this many times faster than real time")
	f.DurationVar(&e.window, "window", 45*time.Second, "time constant of the flow counters, in engine time; longer for few requests per second")
	f.IntVar(&e.tp, "tp", 1, "tensor-parallel ranks of each replica")
	f.StringVar(&e.envoy, "envoy", "", "path of an Envoy binary to carry the traffic instead of the embedded proxy")
	f.StringVar(&e.moves, "migration", "", "how running requests migrate: live, reprompt, place or off; default: the preset's")
	deviceFlag(c, &e.device)
	cli.CompleteFrom(c, "profile", cost.Names())
	cli.CompleteFrom(c, "migration", []string{config.MigrationLive, config.MigrationReprompt, config.MigrationPlace, config.MigrationOff})
}

// buildFleet returns the fleet, on free loopback ports.
func (e *emulationFlags) buildFleet() (wiring.Fleet, error) {
	f := config.Fleet{
		Speed:  e.speed,
		Models: []config.Model{{Name: "llama-3.1-8b", Context: policies.Tokens(e.context), Profile: e.profile}},
		// Port 0: any free one.
		Control: config.Control{Listen: "127.0.0.1:0", Admin: "127.0.0.1:0"},
		Proxy:   config.Proxy{Listen: "127.0.0.1:0"},
		Planner: config.Planner{Window: e.window},
		// This mode is for "up"; a comparison uses one for each preset.
		Migration: config.Migration{Mode: e.moves},
	}
	for i := range e.replicas {
		f.Replicas = append(f.Replicas, flagReplica(fmt.Sprintf("r%d", i), e.tp))
	}
	return resolveFlags(f)
}

// planConfig returns the fleet as the offline planning sees it: in real time, as the trace is, whatever the speed.
func (e *emulationFlags) planConfig() (stageplan.Config, error) {
	p, err := config.LoadProfile(e.profile, ".")
	return stageplan.Config{Profile: p.TensorParallel(e.tp), Replicas: e.replicas, Context: policies.Tokens(e.context)}, err
}

// demoLimit bounds the duration of a demo on a busy machine.
const demoLimit = 15 * time.Minute

// newDemo is "cascade demo": it compares Cascade with round robin, and with placement alone, on one machine.
func newDemo(s *settings) *cobra.Command {
	src := &traceFlags{mix: "mixed", seed: 1}
	e := &emulationFlags{profile: "rtxpro6000-llama-3.1-8b", context: 131072, window: 45 * time.Second, tp: 1, device: gpuset.Host, prompt: string(replay.PromptText)}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Compare Cascade with round robin and placement alone: eight emulated replicas, a realistic mix of requests",
		Long: `Demo starts eight emulated replicas, their migrators, the control plane and a proxy on
loopback, and replays a mix of short and long requests through the OpenAI API on three fleets:

  round robin      all replicas in one stage
  placement alone  the same, and each request starts where it costs least
  cascade          the same, and running requests migrate to where they cost less; stages if one
                   stage cannot carry the load

It compares the three in tables, and its last lines say in three sentences what was seen. The
policies are WebAssembly modules, whose decisions are compared with those of the native
policies. Everything runs in this process and talks over real sockets and real xDS; --envoy puts
a real Envoy process in front.

All three fleets run at the same speed. Where the emulated engines deliver their tokens too late,
the runs start again at the speed that the machine reaches, twice at most, and never so slowly
that all of it takes more than 15 minutes. Times are engine time, so that the speed does not
change what is compared.

The mix and the cost profile are chosen so that lengths matter: many short chats and a few long
documents on a GPU with slow memory. "cascade sim" compares the same and more routers on a
trace of yours, in virtual time.`,
		Example: `  cascade demo
  cascade demo --envoy "$(which envoy)" --out results`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.compare(cmd.Context(), src, e, pluginFlags{}, demoLimit)
		},
	}
	f := c.Flags()
	f.IntVar(&src.requests, "requests", 3600, "requests to send")
	f.Float64Var(&src.rate, "rate", 30, "mean arrivals per second")
	f.IntVar(&e.replicas, "replicas", 8, "emulated replicas")
	f.Float64Var(&e.speed, "speed", 2, "run everything this many times faster than real time; slower if the machine is short of CPU")
	f.StringVar(&e.envoy, "envoy", "", "path of an Envoy binary to carry the traffic instead of the embedded proxy")
	f.StringVar(&e.out, "out", "", "directory for plots, tables and per-request records")
	return c
}

// compare replays the requests with round robin, with placement alone, and with Cascade. The limit bounds the
// duration; 0 is none.
func (s *settings) compare(ctx context.Context, src *traceFlags, e *emulationFlags, p pluginFlags, limit time.Duration) error {
	requests, name, err := src.readWithin(e.context)
	if err != nil {
		return err
	}
	c, err := newPresetComparison(*e, p, requests, limit)
	if err != nil {
		return err
	}
	proxy := "the embedded proxy"
	if e.envoy != "" {
		proxy = e.envoy
	}
	fmt.Fprintf(s.Stderr, "%d requests of %s at %.1f/s, %d replicas of %s, through %s\n",
		len(requests), name, trace.Rate(requests), e.replicas, e.profile, proxy)
	fmt.Fprintln(s.Stderr, c.expected.Announce())
	return c.compare(ctx, s)
}

// slug turns a name into a file name.
func slug(name string) string { return strings.ReplaceAll(strings.ToLower(name), " ", "-") }
