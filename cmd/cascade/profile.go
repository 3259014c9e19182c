package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
)

// newProfile is "cascade profile": cost profiles of engines.
func newProfile(s *settings) *cobra.Command {
	c := group(&cobra.Command{
		Use:   "profile",
		Short: "Cost profiles of engines: list the built-in ones, measure an engine, fit what was measured",
		Long: `A cost profile says how long an engine's iterations and prompts take, what its KV cache
holds, and how long requests take per token (the QoE model). The planner, the admission
of requests and the emulator use it. Profiles of some GPUs are built in; a profile of
your own engine takes two commands:

  cascade profile measure http://127.0.0.1:8000 --record engine.jsonl
  cascade profile fit engine.jsonl --kv-bytes 131072 --out engine.json

Then write "profile: engine.json" in the fleet file, or give --profile engine.json to
"cascade plan", "demo", "replay" and "engine".`,
	})
	c.AddCommand(newProfileList(s), newProfileMeasure(s), newProfileFit(s))
	return c
}

// newProfileList is "cascade profile list": the built-in cost profiles.
func newProfileList(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the built-in cost profiles; --json prints them whole, as files to edit",
		Args:  exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			t := report.Table{Header: []string{"profile", "source", "fixed", "per sequence", "per prompt token", "per KV token", "KV tokens", "batch", "fit p50/p90"}, Left: 2,
				Notes: []string{"--json also prints how each was made, by which command, and what in it is an assumption."}}
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
			return s.printTable(all, t)
		},
	}
}
