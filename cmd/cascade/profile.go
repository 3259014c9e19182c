package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
)

// newProfile is "cascade profile": cost profiles of engines. Without a subcommand it lists the built-in ones.
func newProfile(s *settings) *cobra.Command {
	c := cli.Group(&cobra.Command{
		Use:   "profile",
		Short: "Cost profiles of engines: the built-in ones, measure an engine, fit what was measured",
		Long: `A cost profile says how long an engine's iterations and prompts take, what its KV cache
holds, and how long requests take per token (the QoE model). The planner, the admission
of requests and the emulator use it. Profiles of some GPUs are built in: without a
subcommand they are listed, and with --json printed whole, as files to edit. A profile of
your own engine takes two commands:

  cascade profile measure http://127.0.0.1:8000 --record engine.jsonl
  cascade profile fit engine.jsonl --kv-bytes 131072 --out engine.json

Then write "profile: engine.json" in the fleet file, or give --profile engine.json to
"cascade plan", "up" and "engine".`,
		Example: `  cascade profile --json | jq '.[] | select(.name == "h200-llama-3.1-8b")' > mine.json`,
	})
	help := c.RunE
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) > 0 {
			return help(c, args)
		}
		return s.listProfiles()
	}
	c.AddCommand(newProfileMeasure(s), newProfileFit(s))
	return c
}

// listProfiles prints the built-in cost profiles.
func (s *settings) listProfiles() error {
	t := report.Table{Header: []string{"profile", "source", "fixed", "per sequence", "per prompt token", "per KV token", "KV tokens", "batch", "fit p50/p90"}, Left: 2,
		Notes: []string{"--json also prints how each was made, by which command, and what in it is an assumption.",
			"A profile of your own engine: cascade profile --help."}}
	var all []cost.Profile
	for _, name := range cost.Names() {
		p, err := cost.Builtin(name)
		if err != nil {
			return err
		}
		all = append(all, p)
		t.Rows = append(t.Rows, []string{p.Name, p.Source, fmt.Sprintf("%.2f ms", p.D0*1e3), fmt.Sprintf("%.1f µs", p.D1*1e6),
			fmt.Sprintf("%.1f µs", p.D2*1e6), fmt.Sprintf("%.1f ns", p.D4*1e9), fmt.Sprint(int64(p.KVTokens)), fmt.Sprint(p.MaxBatch),
			fmt.Sprintf("%.0f %% / %.0f %%", p.FitError.P50*100, p.FitError.P90*100)})
	}
	return s.PrintTable(all, t)
}
