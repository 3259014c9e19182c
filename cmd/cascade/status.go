package main

import (
	"context"
	"io"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
)

// statusFlags are the flags of "cascade status".
type statusFlags struct {
	controlFlags
	watchFlags
}

// newStatus is "cascade status": the state of a running control plane.
func newStatus(s *settings) *cobra.Command {
	f := &statusFlags{}
	var wide, legend bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show a running fleet: stages, ranges, replicas, load, epochs, ACKs",
		Long: `Status says first what does not work: a FAULT line each, with what to do, and with NOT READY
before it if requests or operators' orders fail because of it. The metric cascade_fault has a
sample for each of them. Without a fault the first line begins with OK.

Then, for every model, there is a line for each stage of the plan in force and for each
replica; then the proxies, with a line for each that does not have the newest routes, the other
control planes, and the policy modules that decide or are on trial.

--legend explains the words. --wide prints tables with all columns, why each stage exists, what
each engine says of itself, what each proxy has acknowledged, and the latest plans. --json prints
the control plane's answer as it is, with every slot of every host.

Exit codes: 0 when the fleet is ready, 1 when it is not, or no control plane answers. With
--watch, 0 when it is interrupted.`,
		Example: `  cascade status
  cascade status --watch
  cascade status --legend
  cascade status --control http://127.0.0.1:18001 --json | jq '.models[].stages'`,
		Args: cli.ExactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if legend {
				_, err := io.WriteString(s.Stdout, fleetview.Legend)
				return err
			}
			return s.status(cmd, f, wide)
		},
	}
	f.controlFlags.flags(c)
	f.watchFlags.flags(c)
	c.Flags().BoolVar(&wide, "wide", false, "print tables with all columns")
	c.Flags().BoolVar(&legend, "legend", false, "explain the words of the status, and end")
	return c
}

// status prints the state of a control plane, as tables if wide.
func (s *settings) status(cmd *cobra.Command, f *statusFlags, wide bool) error {
	write := fleetview.WriteSummary
	if wide {
		write = fleetview.WriteStatus
	}
	return s.repeat(cmd, &f.controlFlags, f.watchFlags, func(ctx context.Context, base *url.URL) error {
		st, err := showDocument(ctx, s, controlRequest{base: base, path: "status"}, write)
		if err != nil {
			return err
		}
		if !s.JSON && wide && len(st.Policies) > 0 {
			if err := show(ctx, s, controlRequest{base: base, path: "policies"}, fleetview.WriteSlots); err != nil {
				return err
			}
		}
		if f.watch {
			return nil // what is printed says it
		}
		return fleetview.NotReadyError(st)
	})
}
