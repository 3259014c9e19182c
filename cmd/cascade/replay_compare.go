package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/clockspeed"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/demo"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/cmd/internal/tracing"
	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// startTimeout bounds the start of a fleet in this process.
const startTimeout = 2 * time.Minute

// presetComparison replays the same requests on fleets with different presets.
type presetComparison struct {
	emulation emulationFlags
	plugins   pluginFlags
	requests  []trace.Request
	seconds   float64                      // of one run, in engine time, as estimated
	slo       replay.SLO                   // by the profile
	expected  demo.Expectation             // of the planner
	meter     func(*inprocess.Fleet) meter // measures how the engines of a run keep up
	governor  *clockspeed.Governor         // of the speed of all runs
	slowed    []string                     // why speeds were given up, in order
	fleet     wiring.Fleet                 // at the governor's speed
}

// newPresetComparison returns a comparison that starts at the speed of the flags. A limit bounds its duration: the
// clock is slowed down no further. 0 is none.
func newPresetComparison(e emulationFlags, p pluginFlags, requests []trace.Request, limit time.Duration) (*presetComparison, error) {
	fleet, err := e.buildFleet()
	if err != nil {
		return nil, err
	}
	plan, err := e.planConfig()
	if err != nil {
		return nil, err
	}
	w, err := plan.Workload(requests)
	if err != nil {
		return nil, err
	}
	expected, err := demo.ExpectStages(w, fleet.Fleet)
	if err != nil {
		return nil, err
	}
	seconds := estimateSeconds(w, requests)
	floor := 0.0
	if limit > 0 {
		floor = seconds / (limit/time.Duration(len(comparedFleets)) - startAndStop).Seconds()
	}
	return &presetComparison{
		emulation: e, plugins: p, requests: requests, seconds: seconds, slo: replay.Alone(plan.Profile, requests),
		expected: expected, meter: meterPace, governor: clockspeed.New(e.speed, floor),
	}, nil
}

// compare runs every fleet and prints the results. Failed requests are an error.
func (c *presetComparison) compare(ctx context.Context, s *settings) error {
	outcomes, err := c.runAll(ctx, s)
	if err != nil {
		return err
	}
	if err := c.show(s, outcomes); err != nil {
		return err
	}
	for _, o := range outcomes {
		if n := o.Result.Failed(); n > 0 {
			return fmt.Errorf("%s: %d requests failed", o.Result.Name, n)
		}
	}
	return nil
}

// presetResult is the result for one preset.
type presetResult struct {
	Preset string        `json:"preset"`
	Result replay.Result `json:"result"`
	// Lateness is how late the engines delivered their tokens; see clockspeed.Reading.
	Lateness float64        `json:"lateness"`
	Status   control.Status `json:"status"` // at the end of the replay
	// Plan is the model with its plan about a second before the last arrival: later the traffic fades.
	Plan   control.Model            `json:"plan"`
	Placed fleetview.StageHits      `json:"placed"`
	Moves  inprocess.MigrationStats `json:"moves"`
	// Modules are the policies that ran as modules; it is absent if none did.
	Modules *demo.Decisions `json:"modules,omitempty"`
}

// comparedFleet is one of the fleets that are compared.
type comparedFleet struct {
	name, preset string
	// placed leaves of the preset only its placement: one stage, requests placed by load, and no migrations.
	placed bool
}

// comparedFleets are compared in this order. The second is the best rival that the product has.
var comparedFleets = [...]comparedFleet{
	{name: "round robin", preset: config.PresetRoundRobin},
	{name: "placement alone", preset: config.PresetDefault, placed: true},
	{name: "cascade", preset: config.PresetDefault},
}

// configure writes what differs between the fleets into f. moves is how requests migrate; empty
// means as the preset defines.
func (of comparedFleet) configure(f *config.Fleet, moves string) {
	// The migration defaults depend on the preset.
	f.Preset, f.Migration = of.preset, config.Migration{}
	if of.preset != config.PresetRoundRobin {
		f.Migration.Mode = moves
	}
	if of.placed {
		f.Planner.MinRequests, f.Migration.Mode = config.KeepFirstPlan, config.MigrationPlace
	}
}

// run starts a fleet, replays, and stops it.
func (c *presetComparison) run(ctx context.Context, s *settings, of comparedFleet) (presetResult, error) {
	log, err := s.Logger()
	if err != nil {
		return presetResult{}, err
	}
	spans, err := tracing.New(ctx, tracing.Config{Version: cli.Version, Logger: log})
	if err != nil {
		return presetResult{}, err
	}
	defer spans.Close()
	f := c.fleet
	of.configure(&f.Fleet, c.emulation.moves)
	if errs := f.Validate(); len(errs) > 0 {
		return presetResult{}, errs[0]
	}
	f.Fleet.Replicas = append(f.Fleet.Replicas[:0:0], f.Fleet.Replicas...)
	plugins := c.plugins
	plugins.native = plugins.native || of.preset == config.PresetRoundRobin // which uses no policies
	all, err := s.preparePlugins(&f, plugins)
	if err != nil {
		return presetResult{}, err
	}
	cards := newGPUs(log)
	fleet, err := inprocess.New(inprocess.Config{Fleet: f, Envoy: c.emulation.envoy, GPUs: cards, Device: c.emulation.device, Tracer: spans.Tracer(of.name), Logger: log})
	if err != nil {
		return presetResult{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		err := fleet.Run(ctx)
		if err != nil {
			cancel(err)
		}
		done <- err
	}()
	out := presetResult{Preset: of.preset}
	err = c.replay(ctx, s, fleet, of.name, all, &out)
	out.Status = fleet.Control().Status()
	if len(all) > 0 {
		out.Modules = demo.CollectDecisions(fleet)
	}
	out.Placed = fleetview.CountStageHits(out.Result.Records, out.Status.History)
	out.Moves = fleet.MigrationStats()
	cancel(nil)
	return out, errors.Join(err, <-done, cards.Close())
}

// replay replays the requests on a fleet that runs, and sets the Result, the Lateness and the Plan of
// out. The error is errSlower if the engines fell behind.
func (c *presetComparison) replay(ctx context.Context, s *settings, fleet *inprocess.Fleet, name string, all []policyPlugin, out *presetResult) error {
	ready, stop := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("the fleet was not ready within %v; use --log info for details", startTimeout))
	defer stop()
	if err := fleet.Ready(ready); err != nil {
		return err
	}
	if err := pushPlugins(ctx, fleet, all); err != nil {
		return fmt.Errorf("modules: %w", err)
	}
	records, err := createRecords(c.emulation.out, name)
	if err != nil {
		return err
	}
	defer records.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	bar := progress.New(s.Stderr, name, len(c.requests))
	var printed policies.Epoch
	measure := c.meter(fleet)
	r, err := replay.New(replay.Config{
		Name: name, Target: fleet.URL(), Model: c.fleet.Models[0].Name, Requests: c.requests, Prompt: replay.Prompt(c.emulation.prompt),
		Speed: c.fleet.Speed, SLO: c.slo, Records: records,
		Timeout: time.Duration(float64(replay.DefaultTimeout) / min(1, c.fleet.Speed)),
		Progress: func(p replay.Progress) {
			status := fleet.Control().Status()
			printed = s.announceChanges(bar, status.History, printed)
			if p.Sent < p.Total || len(out.Plan.Stages) == 0 {
				out.Plan = status.Models[0]
			}
			if p.Done < p.Total && ctx.Err() == nil {
				if err := c.watch(s, bar, measure(p.Elapsed, p.IdleCPU)); err != nil {
					cancel(err)
				}
			}
			bar.Set(p.Done)
		},
	})
	if err != nil {
		return err
	}
	out.Result, err = s.runReplay(ctx, r, fleet.Engines(), fleet.Stages, c.requests, c.fleet.Speed)
	s.announceChanges(bar, fleet.Control().Status().History, printed)
	bar.End()
	if err != nil {
		return err
	}
	reading := measure(0, out.Result.IdleCPU)
	out.Lateness = reading.Lateness
	out.Result.Void, err = c.judge(s, reading)
	return err
}

// announceChanges prints the plans after an epoch, and returns the epoch of the last one. The
// history belongs to one model.
func (s *settings) announceChanges(bar *progress.Bar, history []control.Change, printed policies.Epoch) policies.Epoch {
	for _, c := range history {
		if c.Epoch <= printed {
			continue
		}
		printed = c.Epoch
		bar.Clear()
		fmt.Fprintf(s.Stderr, "  epoch %d: %s\n", c.Epoch, fleetview.DescribeChange(c))
	}
	return printed
}

// show prints the comparison as tables, and writes pictures and results into
// the directory.
func (c *presetComparison) show(s *settings, outcomes []presetResult) error {
	results := make([]replay.Result, len(outcomes))
	for i, o := range outcomes {
		results[i] = o.Result
	}
	if c.emulation.out != "" {
		if err := c.write(results, outcomes); err != nil {
			return err
		}
	}
	if s.JSON {
		return s.Print(outcomes)
	}
	last := outcomes[len(outcomes)-1]
	sentences := demo.Story(results, last.Plan, last.Moves, c.expected)
	if len(last.Plan.Stages) < 2 {
		fmt.Fprintln(s.Stdout, sentences[0])
	}
	tables := append(resultTables(results), report.Stages(last.Result), fleetview.PlanTable("Plan of "+last.Result.Name, last.Plan))
	if err := report.WriteTables(s.Stdout, tables...); err != nil {
		return err
	}
	c.writeSpeed(s.Stdout, outcomes)
	p := last.Placed
	fmt.Fprintf(s.Stdout, "By exact length, %d requests were served in their stage, %d next to it (the estimate was off at a boundary), %d elsewhere.\n", p.InRange, p.Next, p.Other+p.Unknown)
	for _, m := range last.Status.Models {
		fmt.Fprintf(s.Stdout, "The length estimate for %s used %.2f bytes per token; its mean error against exact counts was %.1f %%.\n", m.Name, m.BytesPerToken, m.EstimateError*100)
	}
	last.Moves.Write(s.Stdout)
	if err := last.Modules.Write(s.Stdout); err != nil {
		return err
	}
	if c.emulation.out != "" {
		fmt.Fprintf(s.Stdout, "Plots, requests and results are in %s.\n", c.emulation.out)
	}
	fmt.Fprintf(s.Stdout, "\n%s\n", strings.Join(sentences, "\n"))
	return nil
}

// write writes pictures and results into the directory.
func (c *presetComparison) write(results []replay.Result, outcomes []presetResult) error {
	lengths := make([]policies.Tokens, len(c.requests))
	for i, r := range c.requests {
		lengths[i] = r.Input + r.Output
	}
	return writeResults(c.emulation.out, results, map[string]func() (report.Picture, error){
		"final-plan": func() (report.Picture, error) { return report.Plan(planTitle(outcomes), finalPlan(outcomes), lengths) },
	})
}

// planTitle says which plan finalPlan is.
func planTitle(outcomes []presetResult) string {
	last := outcomes[len(outcomes)-1]
	return fmt.Sprintf("Plan of %s at the end of its run, epoch %d", last.Result.Name, last.Status.Models[0].Epoch)
}

// finalPlan returns the plan in force at the end of the last run.
func finalPlan(outcomes []presetResult) policies.Plan {
	m := outcomes[len(outcomes)-1].Status.Models[0]
	p := policies.Plan{Model: m.Name, Epoch: m.Epoch}
	for _, st := range m.Stages {
		stage := policies.Stage{Low: st.Low, High: policies.Unbounded}
		if st.High != nil {
			stage.High = *st.High
		}
		for _, r := range st.Replicas {
			stage.Replicas = append(stage.Replicas, r.ID)
		}
		p.Stages = append(p.Stages, stage)
	}
	return p
}
