package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/xds/control"
)

// statusFlags are the flags of "cascade status".
type statusFlags struct {
	controlFlags
	watchFlags
}

// newStatus is "cascade status": the state of a running control plane.
func newStatus(s *settings) *cobra.Command {
	f := &statusFlags{}
	c := &cobra.Command{
		Use:   "status",
		Short: "Show a running fleet: stages, ranges, replicas, load, epochs, ACKs",
		Long: `Status shows, for every model, the plan in force and its reason, each stage's range and replicas with their load, the proxies with the
epoch that each has acknowledged and what it refused, the policies, and the latest plans.

Columns: weight is the EDS weight (100 is neutral); held and promised are KV tokens
in use and accepted but not begun; iteration is the mean time between a request's
tokens; report is the age of the last load report; transports are those by which KV
blocks may come to the replica, best first, with the state of those that do not work, and
in brackets the number of peers for which they failed recently and are tried last.
A line for each policy slot shows what decides there and on how many hosts, with any
problems; hosts that differ from most others have a line each. "cascade policy
status" has every host, and what its modules have done.

--json prints the control plane's answer as it is, with every slot of every host.`,
		Example: `  cascade status
  cascade status --watch
  cascade status --control http://127.0.0.1:18001 --json | jq '.models[].stages'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.status(cmd, f) },
	}
	f.controlFlags.flags(c)
	f.watchFlags.flags(c)
	return c
}

func (s *settings) status(cmd *cobra.Command, f *statusFlags) error {
	base, err := f.baseURL(cmd)
	if err != nil {
		return err
	}
	return s.repeat(cmd, f.watchFlags, func(ctx context.Context) error {
		return show(ctx, s, controlRequest{base: base, path: "status"}, func(w io.Writer, st control.Status) error {
			if err := writeStatus(w, st); err != nil || len(st.Policies) == 0 {
				return err
			}
			return show(ctx, s, controlRequest{base: base, path: "policies"}, writeSlots)
		})
	})
}
