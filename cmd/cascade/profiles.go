package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
)

// newProfiles is "cascade profiles": the built-in cost profiles.
func newProfiles(s *settings) *cobra.Command {
	return &cobra.Command{
		Use:   "profiles",
		Short: "List the built-in cost profiles; --json prints them whole, as files to edit",
		Args:  exactArgs(0),
		RunE: func(*cobra.Command, []string) error {
			t := report.Table{Header: []string{"profile", "source", "fixed", "per sequence", "per prompt token", "per KV token", "KV tokens", "batch", "fit p50/p90"}, Left: 2}
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
