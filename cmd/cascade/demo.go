package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/cost"
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
	f.StringVar(&e.profile, "profile", "rtxpro6000-llama-3.1-8b", "cost profile of the replicas (see \"cascade profile list\")")
	f.Int64Var(&e.context, "context", 131072, "the model's context in tokens; longer requests are dropped")
	f.Float64Var(&e.speed, "speed", speed, "run engines, arrivals and the planner this many times faster than real time")
	f.DurationVar(&e.window, "window", 45*time.Second, "time constant of the flow counters, in engine time; longer for few requests per second")
	f.IntVar(&e.tp, "tp", 1, "tensor-parallel ranks of each replica")
	f.StringVar(&e.envoy, "envoy", "", "path of an Envoy binary to carry the traffic instead of the embedded proxy")
	f.StringVar(&e.moves, "migration", "", "how running requests migrate: live, reprompt, place or off; default: the preset's")
	deviceFlag(c, &e.device)
	completeFrom(c, "profile", cost.Names())
	completeFrom(c, "migration", []string{config.MigrationLive, config.MigrationReprompt, config.MigrationPlace, config.MigrationOff})
}

// slows changes the description of --speed for a comparison, which runs slower if it has to.
func (e *emulationFlags) slows(c *cobra.Command) {
	c.Flags().Lookup("speed").Usage = "run engines, arrivals and the planner this many times faster than real time; slower if the machine is short of CPU"
}

// results adds the flags for the requests to send and the results to store.
func (e *emulationFlags) results(c *cobra.Command) {
	c.Flags().StringVar(&e.prompt, "prompt", "text", "send prompts as text or as token ids: text or ids")
	c.Flags().StringVar(&e.out, "out", "", "directory for plots, tables and per-request records")
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
		f.Replicas = append(f.Replicas, config.Replica{
			ID: fmt.Sprintf("r%d", i), Address: "127.0.0.1:0", Peer: "127.0.0.1:0", Engine: "http://127.0.0.1:0", TP: e.tp,
		})
	}
	if errs := f.Validate(); len(errs) > 0 {
		return wiring.Fleet{}, errs[0]
	}
	fleet, err := wiring.Resolve(f, ".")
	return fleet, nameFlag(err)
}

// newDemo is "cascade demo": it compares stages with round robin on one machine.
func newDemo(s *settings) *cobra.Command {
	src, e, p := &traceFlags{}, &emulationFlags{}, &pluginFlags{}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Compare stages with round robin and least load: eight emulated replicas, a realistic mix of requests",
		Long: `Demo starts eight emulated replicas, their migrators, the control plane and a proxy
on loopback, replays a mix of short and long requests through the OpenAI API, first
with all replicas in one stage (round robin), then in one stage with requests placed by
load and not migrated (least load), then with planned stages between which running
requests migrate, and compares the three. The policies are WebAssembly modules,
whose decisions are compared with those of the native policies; --native uses native
policies only. Everything runs in this process and talks over real sockets and real xDS;
--envoy puts a real Envoy process in front.

All three fleets run at the same speed, --speed unless the machine is short of CPU. When
the emulated engines deliver their tokens too late, the runs stop and start again at half
the speed or less, down to a sixteenth, which is said together with the new duration.
Times are engine time, so that the speed does not change what is compared. Below them the
plan says why each stage exists: what the planner predicts without it.

The mix and the cost profile are chosen so that stages pay: many short chats and a
few long documents on a GPU with slow memory. "cascade replay" takes other
traffic; on uniform lengths the planner stays with one stage.`,
		Example: `  cascade demo
  cascade demo --envoy "$(which envoy)" --out results`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.compare(cmd.Context(), src, e, *p) },
	}
	src.flags(c, 3600)
	e.flags(c, 2)
	e.slows(c)
	e.results(c)
	p.flags(c)
	c.Flags().Lookup("rate").DefValue = "30"
	src.rate = 30
	return c
}

// compare replays the requests with round robin, with placement by least load, and with planned stages.
func (s *settings) compare(ctx context.Context, src *traceFlags, e *emulationFlags, p pluginFlags) error {
	requests, name, err := src.readWithin(e.context)
	if err != nil {
		return err
	}
	c, err := newPresetComparison(*e, p, requests)
	if err != nil {
		return err
	}
	proxy := "the embedded proxy"
	if e.envoy != "" {
		proxy = e.envoy
	}
	fmt.Fprintf(s.stderr, "%d requests of %s at %.1f/s, %d replicas of %s, through %s\n",
		len(requests), name, trace.Rate(requests), e.replicas, e.profile, proxy)
	return c.compare(ctx, s)
}

// slug turns a name into a file name.
func slug(name string) string { return strings.ReplaceAll(strings.ToLower(name), " ", "-") }
