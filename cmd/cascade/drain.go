package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// drainPollPeriod is the time between two status requests of --wait. It is slightly longer than the
// time between two load reports. Tests shorten it.
var drainPollPeriod = 750 * time.Millisecond

// drainFlags are the flags of "cascade drain".
type drainFlags struct {
	controlFlags
	wait    bool
	timeout time.Duration
}

// newDrain is "cascade drain": it empties replicas.
func newDrain(s *settings) *cobra.Command {
	f := &drainFlags{}
	c := &cobra.Command{
		Use:   "drain REPLICA...",
		Short: "Empty replicas: no new request, running ones migrate",
		Long: `Drain takes replicas out of their stages: they get no new request, and what runs on
them migrates to other replicas while its clients continue reading. Requests that cannot
migrate (pinned: several choices, tools, and so on) stay to their end, which is
estimated from their max_tokens. The drain is kept across restarts of the control
plane, until "cascade undrain".

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
  cascade undrain r3 r4`,
		Args: requireReplicas,
		RunE: func(cmd *cobra.Command, replicas []string) error {
			if f.timeout < 0 {
				return usageErrorf(cmd, "--timeout %v is negative", f.timeout)
			}
			if cmd.Flags().Changed("timeout") && !f.wait {
				return usageErrorf(cmd, "--timeout needs --wait")
			}
			return s.drain(cmd, f, replicas)
		},
	}
	f.controlFlags.flags(c)
	c.Flags().BoolVar(&f.wait, "wait", false, "wait until nothing runs on the replicas any more")
	c.Flags().DurationVar(&f.timeout, "timeout", 10*time.Minute, "how long to wait at most; 0: for ever")
	c.ValidArgsFunction = f.file.completeReplicas
	return c
}

// newUndrain is "cascade undrain": it returns replicas to service.
func newUndrain(s *settings) *cobra.Command {
	f := &controlFlags{}
	c := &cobra.Command{
		Use:   "undrain REPLICA...",
		Short: "Put drained replicas back into their stages",
		Long: `Undrain ends "cascade drain": the replicas get new requests as
soon as they are healthy. One that the fleet file drains ("drain: true") stays drained
until the file changes.

Exit codes: 0 when all are put back, 1 when the control plane rejects one.`,
		Example: `  cascade undrain r3
  cascade undrain r3 r4 -c fleet.yaml`,
		Args: requireReplicas,
		RunE: func(cmd *cobra.Command, replicas []string) error {
			base, err := f.baseURL(cmd)
			if err != nil {
				return err
			}
			states, err := postCommands(cmd.Context(), base, "undrain", replicas)
			if s.json {
				return errors.Join(s.print(states), err)
			}
			for _, state := range states {
				fmt.Fprintf(s.stdout, "%s: %s\n", state.ID, describeUndrained(state))
			}
			return err
		},
	}
	f.flags(c)
	c.ValidArgsFunction = f.file.completeReplicas
	return c
}

// requireReplicas requires at least one name, and each only once.
func requireReplicas(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageErrorf(c, "name at least one replica; \"cascade status\" lists them")
	}
	for i, a := range args {
		if a == "" || slices.Contains(args[:i], a) {
			return usageErrorf(c, "replica %q: name each replica once", a)
		}
	}
	return nil
}

// postCommands posts a drain or undrain for each replica. It returns the states of the replicas whose
// command was accepted, and the joined errors of the others.
func postCommands(ctx context.Context, base *url.URL, command string, replicas []string) (states []control.DrainResult, err error) {
	states = []control.DrainResult{}
	for _, id := range replicas {
		state, postErr := fetch[control.DrainResult](ctx, controlRequest{base: base, method: http.MethodPost, path: command, query: url.Values{"replica": {id}}})
		if postErr != nil {
			err = errors.Join(err, fmt.Errorf("%s %s: %w", command, id, postErr))
			continue
		}
		states = append(states, state)
	}
	return states, err
}

func (s *settings) drain(cmd *cobra.Command, f *drainFlags, replicas []string) error {
	base, err := f.baseURL(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	states, err := postCommands(ctx, base, "drain", replicas)
	anyRefused := err != nil // then the command does not wait for the others
	if f.wait && !anyRefused {
		states, err = s.waitUntilEmpty(ctx, base, f.timeout, states)
	}
	if s.json {
		return errors.Join(s.print(states), err)
	}
	if !f.wait || anyRefused {
		for _, state := range states {
			fmt.Fprintf(s.stdout, "%s: draining, %s\n", state.ID, describeRemaining(state.Replica))
		}
	}
	return err
}

// waitUntilEmpty waits until no request runs on the replicas, and prints the progress.
func (s *settings) waitUntilEmpty(ctx context.Context, base *url.URL, timeout time.Duration, states []control.DrainResult) ([]control.DrainResult, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("not empty within %v", timeout))
		defer cancel()
	}
	out := io.Writer(s.stdout)
	if s.json {
		out = s.stderr
	}
	printed, empty := map[policies.ReplicaID]string{}, map[policies.ReplicaID]int{}
	tick := time.NewTicker(drainPollPeriod)
	defer tick.Stop()
	for {
		waiting := 0
		for _, state := range states {
			// The first report may be older than the drain: two in a row must be empty.
			if isEmpty(state.Replica) {
				empty[state.ID]++
			} else {
				empty[state.ID] = 0
			}
			text := describeRemaining(state.Replica)
			switch {
			case empty[state.ID] == 0:
				waiting++
			case empty[state.ID] == 1:
				waiting++
				continue // the next report decides
			case state.Streams > 0:
				text = fmt.Sprintf("empty; its migrator carries %s of requests that run elsewhere", plural(state.Streams, "stream"))
			default:
				text = "empty"
			}
			if printed[state.ID] != text {
				printed[state.ID] = text
				fmt.Fprintf(out, "%s: %s\n", state.ID, text)
			}
		}
		if waiting == 0 {
			return states, nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			now, err := readStates(ctx, base, states)
			switch {
			case err == nil:
				states = now
			case ctx.Err() == nil:
				// The control plane has stored the drain and may soon be reachable again.
				fmt.Fprintln(s.stderr, "cascade:", err)
			}
		}
		if ctx.Err() != nil {
			return states, drainError(ctx, states, empty)
		}
	}
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
			errs = append(errs, fmt.Errorf("%s: %w: %s; it continues to drain until \"cascade undrain %s\"", state.ID, why, describeRemaining(state.Replica), state.ID))
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
		now[i] = control.DrainResult{Model: state.Model, Replica: control.Replica{ID: state.ID, Health: healthGone}}
	}
	for _, m := range st.Models {
		for _, r := range replicas(m) {
			if i := slices.IndexFunc(now, func(state control.DrainResult) bool { return state.ID == r.ID }); i >= 0 {
				now[i].Replica = r
			}
		}
	}
	return now, nil
}

// healthGone is the health of a replica that has left the fleet.
const healthGone = "gone"

// isEmpty reports whether no request runs on a replica, according to its report.
func isEmpty(r control.Replica) bool {
	return r.Health == healthGone || r.Connected && r.ReportAge != nil && r.Residents == 0
}

// describeRemaining returns what still runs on a replica.
func describeRemaining(r control.Replica) string {
	switch {
	case r.Health == healthGone:
		return "it has left the fleet"
	case !r.Connected:
		return "its migrator does not report, so what runs there is unknown"
	}
	text := plural(r.Residents, "request") + " left"
	if r.Pinned > 0 {
		text += fmt.Sprintf(", %d of them pinned", r.Pinned)
		if r.PinnedSeconds > 0 {
			text += fmt.Sprintf(" (about %v more)", time.Duration(r.PinnedSeconds*float64(time.Second)).Round(time.Second))
		}
	}
	return text
}

// plural returns a count with its noun.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// describeUndrained returns the state of a replica after undrain.
func describeUndrained(state control.DrainResult) string {
	switch {
	case len(state.Drain) > 0:
		return "still drained by " + strings.Join(state.Drain, " and ")
	case state.Stage == "" && state.Health == resources.Healthy.String():
		return "healthy; no control plane has given it a stage yet, see \"cascade status\""
	case state.Stage == "":
		return state.Health + "; it joins a stage once it is healthy"
	}
	return fmt.Sprintf("%s, in stage %s of %s", state.Health, state.Stage, state.Model)
}
