package main

import (
	"context"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

func newPolicyStatus(s *settings) *cobra.Command {
	f, r := &statusFlags{}, &recordsFlags{}
	c := &cobra.Command{
		Use:   "status [SLOT...]",
		Short: "Show what decides in the slots of a running fleet, host by host",
		Long: `Status shows for each slot what the fleet runs, what is on trial and how far it may go,
and what was taken back and why; then, where there are modules, for each host which
generation decides there, how many calls it answered, in shadow recorded ones, how many
of them the built-in policy had to answer (faults), and, of one on trial, how many
answers were compared with those of the policy in force, how many of these it answered
otherwise (differ), and how many are worse by the host's own measure: a bid that loads
more or starts later and is better in neither, or none where there was one; a partition
that costs more by a quarter, or none where there was one; a boundary that serves worse
by a twentieth, and no better than the one that it would move. --records fetches
them. Column reason is what it waits for, and for about how long; or that it
"would not be promoted", and ends if it is: too many of its answers are worse; or that
it is "inconclusive": too many are, of too few to judge by, and it goes no further until
that is known, on other hosts either. Where the machine did not run a module in time,
the built-in policy answers, too; that is not a fault; column reason has the number (starved).

A host where a module is "not asked yet" passes no gate: when others have had it decide
for 30 s, and none is inconclusive, it follows them.

Generation 0 is the built-in policy. A host is a migrator, or a control plane
("control/NAME"), whose slots are partition and guard.

--records writes the last calls that the policy in force of a slot answered on one host,
built-in policies included: the arguments, the decision, the fuel, and the
module's digest. "cascade policy diff" then shows where another policy would have
decided otherwise, and "test" takes the file as testdata. A host keeps the
last 64 calls of a slot, of a module's 64 for each call that can be made at a time.

Slots partition and guard are the control plane's. The others are the migrators': --replica
selects one of the fleet file, on its "admin" address; "cascade up" is all of them, and is
read like the control plane. Calls contain names of requests: hosts serve them on their own
host only.`,
		Example: `  cascade policy status
  cascade policy status bid-select --watch
  cascade policy status refine --records
  cascade policy diff refine.jsonl my-refiner.wasm     # beside what was decided
  cascade policy status bid-select --records -c fleet.yaml --replica r0 -o bids.jsonl
  cascade policy status --json | jq '.slots[] | {slot, stable: .stable.sha256}'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if err := requireSlots(cmd, args); err != nil {
					return err
				}
			}
			if r.wanted {
				return s.saveRecords(cmd, &f.controlFlags, r, args)
			}
			if err := cli.RequireFlag(cmd, "records", "replica", "output"); err != nil {
				return err
			}
			return s.repeat(cmd, &f.controlFlags, f.watchFlags, func(ctx context.Context, base *url.URL) error {
				request := controlRequest{base: base, path: "policies", query: url.Values{"slot": args}}
				return show(ctx, s, request, fleetview.WritePolicies)
			})
		},
	}
	c.ValidArgs = lifecycle.KindNames()
	f.controlFlags.flags(c)
	f.watchFlags.flags(c)
	r.flags(c, &f.file)
	return c
}
