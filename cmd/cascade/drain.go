package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// drainPollPeriod is the time between two status requests of --wait. It is slightly longer than the
// time between two load reports. Tests shorten it.
var drainPollPeriod = 750 * time.Millisecond

// drainFlags are the flags of "cascade drain".
type drainFlags struct {
	controlFlags
	wait, undo bool
	timeout    time.Duration
}

// newDrain is "cascade drain": it empties replicas, or returns them to service.
func newDrain(s *settings) *cobra.Command {
	f := &drainFlags{}
	c := &cobra.Command{
		Use:   "drain REPLICA...",
		Short: "Empty replicas: no new request, running ones migrate; --undo puts them back",
		Long: `Drain takes replicas out of their stages: they get no new request, and what runs on
them migrates to other replicas while its clients continue reading. Requests that cannot
migrate (pinned: several choices, tools, and so on) stay to their end, which is
estimated from their max_tokens. The drain is kept across restarts of the control
plane, until "cascade drain --undo": the replicas get new requests as soon as they are
healthy. One that the fleet file drains ("drain: true") stays drained until the file
changes.

With --wait it ends when nothing runs on them any more, so that their engines may be
stopped or replaced. Streams of a replica's own clients whose requests run elsewhere
still pass through its migrator: stop that migrator with SIGTERM; it exits after its last
stream. A model's last serving replica is not drained.

Exit codes: 0 when all are draining (with --wait: when all are empty), 1 when the control
plane rejects one, or one is not empty within --timeout, or the wait is interrupted. The
replicas continue to drain in any case. If one is rejected, the others drain, and --wait
does not wait.`,
		Example: `  cascade drain r3
  cascade drain r3 r4 --wait --timeout 5m && systemctl restart vllm@3 vllm@4
  cascade drain --undo r3 r4`,
		Args: requireReplicas,
		RunE: func(cmd *cobra.Command, replicas []string) error {
			if f.timeout < 0 {
				return cli.Usagef(cmd, "--timeout %v is negative", f.timeout)
			}
			if err := cmp.Or(cli.RequireFlag(cmd, "wait", "timeout"), cli.ExcludeFlags(cmd, "undo", "wait")); err != nil {
				return err
			}
			if f.undo {
				return s.undrain(cmd, f, replicas)
			}
			return s.drain(cmd, f, replicas)
		},
	}
	f.controlFlags.flags(c)
	c.Flags().BoolVar(&f.undo, "undo", false, "end the drain: put the replicas back into their stages")
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until nothing runs on the replicas any more")
	c.Flags().DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait at most; 0: for ever")
	c.ValidArgsFunction = f.file.completeReplicas
	return c
}

// undrain ends the drain of replicas.
func (s *settings) undrain(cmd *cobra.Command, f *drainFlags, replicas []string) error {
	base, err := f.baseURL(cmd)
	if err != nil {
		return err
	}
	states, err := postCommands(cmd.Context(), base, "undrain", replicas)
	if s.JSON {
		return errors.Join(s.Print(states), err)
	}
	for _, state := range states {
		fmt.Fprintf(s.Stdout, "%s: %s\n", state.ID, fleetview.DescribeUndrained(state))
	}
	return err
}

// requireReplicas requires at least one name, and each only once.
func requireReplicas(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.Usagef(c, "name at least one replica; \"cascade status\" lists them")
	}
	for i, a := range args {
		if a == "" || slices.Contains(args[:i], a) {
			return cli.Usagef(c, "replica %q: name each replica once", a)
		}
	}
	return nil
}

// postCommands posts a drain or undrain for each replica. It returns the states of the replicas whose
// command was accepted, and the joined errors of the others.
func postCommands(ctx context.Context, base *url.URL, command string, replicas []string) (states []control.DrainResult, err error) {
	states = []control.DrainResult{}
	for _, id := range replicas {
		r := controlRequest{base: base, method: http.MethodPost, path: command, query: url.Values{"replica": {id}}}
		state, postErr := fetch[control.DrainResult](ctx, r)
		if postErr != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", command, id, postErr))
			continue
		}
		states = append(states, state)
	}
	return states, err
}

func (s *settings) drain(cmd *cobra.Command, f *drainFlags, replicas []string) error {
	plane, err := f.connect(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	states, err := postCommands(ctx, plane.base, "drain", replicas)
	anyRefused := err != nil // then the command does not wait for the others
	if f.wait && !anyRefused {
		states, err = s.waitUntilEmpty(ctx, plane, f.timeout, states)
	}
	if s.JSON {
		return errors.Join(s.Print(states), err)
	}
	if !f.wait || anyRefused {
		for _, state := range states {
			fmt.Fprintf(s.Stdout, "%s: draining, %s\n", state.ID, fleetview.DescribeRemaining(state.Replica))
		}
	}
	return err
}

// waitUntilEmpty waits until no request runs on the replicas, and prints the progress.
func (s *settings) waitUntilEmpty(
	ctx context.Context, plane *controlPlane, timeout time.Duration, states []control.DrainResult,
) ([]control.DrainResult, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not empty within %v", timeout))
		defer cancel()
	}
	out := io.Writer(s.Stdout)
	if s.JSON {
		out = s.Stderr
	}
	printed, empty := map[policies.ReplicaID]string{}, map[policies.ReplicaID]int{}
	tick := time.NewTicker(drainPollPeriod)
	defer tick.Stop()
	for err := error(nil); ; {
		if err == nil && countEmpty(out, states, empty, printed) == len(states) {
			return states, nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			var now []control.DrainResult
			err = plane.ask(func(base *url.URL) (err error) {
				now, err = readStates(ctx, base, states)
				return err
			})
			switch {
			case err == nil:
				states = now
			case ctx.Err() == nil:
				// The control plane has stored the drain and may soon be reachable again.
				fmt.Fprintln(s.Stderr, "cascade:", err)
			}
		}
		if ctx.Err() != nil {
			return states, drainError(ctx, states, empty)
		}
	}
}

// countEmpty returns how many replicas are empty, and prints what has changed. empty counts for each replica the
// reports in a row that say so: the first may be older than the drain, so that two must.
func countEmpty(
	out io.Writer, states []control.DrainResult, empty map[policies.ReplicaID]int, printed map[policies.ReplicaID]string,
) (n int) {
	for _, state := range states {
		text := fleetview.DescribeRemaining(state.Replica)
		if !fleetview.IsEmpty(state.Replica) {
			empty[state.ID] = 0
		} else if empty[state.ID]++; empty[state.ID] == 1 {
			continue // the next report decides
		} else if n++; state.Streams > 0 {
			text = fmt.Sprintf("empty; its migrator carries %s of requests that run elsewhere", cli.Plural(state.Streams, "stream"))
		} else {
			text = "empty"
		}
		if printed[state.ID] != text {
			printed[state.ID] = text
			fmt.Fprintf(out, "%s: %s\n", state.ID, text)
		}
	}
	return n
}

// drainError describes what still runs when the wait ends early.
func drainError(ctx context.Context, states []control.DrainResult, empty map[policies.ReplicaID]int) error {
	why := context.Cause(ctx)
	if errors.Is(why, context.Canceled) {
		why = errors.New("interrupted") // an error: the drain is not complete
	}
	var errs []error
	for _, state := range states {
		if empty[state.ID] < 2 {
			errs = append(errs, fmt.Errorf("%s: %w: %s; it continues to drain until \"cascade drain --undo %s\"",
				state.ID, why, fleetview.DescribeRemaining(state.Replica), state.ID))
		}
	}
	return errors.Join(errs...)
}

// readStates returns the current state of replicas; one that has left the fleet
// is empty.
func readStates(ctx context.Context, base *url.URL, states []control.DrainResult) ([]control.DrainResult, error) {
	st, err := fetch[control.Status](ctx, controlRequest{base: base, path: "status"})
	if err != nil {
		return nil, err
	}
	now := make([]control.DrainResult, len(states))
	for i, state := range states {
		now[i] = control.DrainResult{Model: state.Model, Replica: control.Replica{ID: state.ID, Health: fleetview.HealthGone}}
	}
	for _, m := range st.Models {
		for _, r := range fleetview.Replicas(m) {
			if i := slices.IndexFunc(now, func(state control.DrainResult) bool { return state.ID == r.ID }); i >= 0 {
				now[i].Replica = r
			}
		}
	}
	return now, nil
}
