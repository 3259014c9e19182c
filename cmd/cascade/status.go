package main

import (
	"context"

	"github.com/spf13/cobra"
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
		Long: `Status shows, for every model, the plan in force and its reason, each stage's range and
replicas with their load; then the proxies, with the epoch that each has acknowledged and
what it refused; then the policies and the latest plans.

Columns: weight is the EDS weight (100 is neutral); held and promised are KV tokens
in use and accepted but not begun; iteration is the mean time between a request's
tokens; proxies is how many requests all proxies have in progress at the replica, where they
report it; report is the age of the last load report; transports are those by which KV
blocks may come to the replica, best first, with the state of those that do not work, and
in brackets the number of peers for which they failed recently and are tried last.
A line for each policy slot shows what decides there and on how many hosts, with any
problems; hosts that differ from most others have a line each. "cascade policy
status" has every host, and what its modules have done.

What does not work comes first: a FAULT line each, under the headline NOT READY if
requests or operators' orders fail because of it. The metric cascade_fault has a sample
for each of them.

States of a proxy: current (it has the newest routes), refuses (it refuses what others of
its group run), late (the roll-out does not wait for it), unlisted (it is no proxy of the
fleet by proxy.nodes, and the roll-out ignores it), gone (it is not connected).

--json prints the control plane's answer as it is, with every slot of every host.

Exit codes: 0 when the fleet is ready, 1 when it is not, or no control plane answers. With
--watch, 0 when it is interrupted.`,
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
		st, err := showDocument(ctx, s, controlRequest{base: base, path: "status"}, writeStatus)
		if err != nil {
			return err
		}
		if !s.json && len(st.Policies) > 0 {
			if err := show(ctx, s, controlRequest{base: base, path: "policies"}, writeSlots); err != nil {
				return err
			}
		}
		if f.watch {
			return nil // what is printed says it
		}
		return notReadyError(st.Faults)
	})
}
