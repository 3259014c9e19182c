package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/xds/control"
)

// maxMigrations is how many migrations a control plane returns at once.
const maxMigrations = 512

// migrationsFlags are the flags of "cascade migrations".
type migrationsFlags struct {
	controlFlags
	watchFlags
	limit int
}

// newMigrations is "cascade migrations": the latest migrations of requests.
func newMigrations(s *settings) *cobra.Command {
	f := &migrationsFlags{}
	c := &cobra.Command{
		Use:   "migrations",
		Short: "Show the latest migrations of requests between replicas",
		Long: `Migrations shows the migrations that the replicas reported to the control plane, the
newest first: those in progress and the latest that have ended.

Columns: why is growth (out of its stage's lengths), outlier (its replica carries more
than its share), drain, spill (its replica is full) or engine lost; front is the replica
that owns the client's stream, whoever generates. The way is live (KV blocks copied
while it decodes, over the transport named beside it) or reprompt (computed anew).
Tokens is the request's length when the migration began; rounds and copied are what was
copied of it; stall is how much longer the client waited than for other tokens: from
freeze to commit, or from the splice to the first new token.

--json prints the control plane's answer as it is.`,
		Example: `  cascade migrations --watch
  cascade migrations --limit 500 --json | jq '[.moves[].stall_seconds] | max'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.limit < 1 || f.limit > maxMigrations {
				return usageErrorf(cmd, "--limit %d: 1 to %d", f.limit, maxMigrations)
			}
			return s.migrations(cmd, f)
		},
	}
	f.controlFlags.flags(c)
	f.watchFlags.flags(c)
	c.Flags().IntVar(&f.limit, "limit", 30, fmt.Sprintf("how many migrations, at most %d", maxMigrations))
	return c
}

func (s *settings) migrations(cmd *cobra.Command, f *migrationsFlags) error {
	base, err := f.baseURL(cmd)
	if err != nil {
		return err
	}
	query := url.Values{"limit": {strconv.Itoa(f.limit)}}
	return s.repeat(cmd, f.watchFlags, func(ctx context.Context) error {
		body, err := request(ctx, base, http.MethodGet, "migrations", query)
		if err != nil {
			return err
		}
		return printResponse(s, base, body, writeMigrations)
	})
}

// writeMigrations prints migrations as text.
func writeMigrations(w io.Writer, m control.Migrations) error {
	if len(m.Migrations) == 0 {
		_, err := fmt.Fprintln(w, "No request has migrated yet.")
		return err
	}
	t := report.Table{
		Header: []string{"began", "request", "why", "front", "from", "to", "way", "state", "tokens", "rounds", "copied", "stall", "took"}, Left: 8,
	}
	for _, move := range m.Migrations {
		began, way, state := "–", move.Way, move.State
		if move.Started != nil {
			began = move.Started.Local().Format(time.TimeOnly)
		}
		if move.Transport != "" {
			way += ", " + move.Transport
		}
		if move.Why != "" {
			state += ": " + move.Why
		}
		t.Rows = append(t.Rows, []string{began, move.Request, move.Cause, string(move.Frontend), string(move.From), string(move.To), way, state,
			fmt.Sprint(int64(move.Tokens)), fmt.Sprint(move.Rounds), formatBytes(move.Bytes), formatSeconds(move.Stall), formatSeconds(move.Seconds)})
	}
	t.Notes = []string{summarizeMigrations(m.Migrations)}
	return t.Text(w)
}

// summarizeMigrations returns one line about migrations.
func summarizeMigrations(moves []control.Migration) string {
	ways, stalls, copied := map[string]int{}, []float64(nil), int64(0)
	done, aborted := 0, 0
	for _, m := range moves {
		copied += m.Bytes
		switch m.State {
		case "done":
			done++
			ways[m.Way]++
			stalls = append(stalls, m.Stall)
		case "aborted":
			aborted++
		}
	}
	line := fmt.Sprintf("%s: %d done", plural(len(moves), "move"), done)
	var kinds []string
	for way, n := range ways {
		kinds = append(kinds, fmt.Sprintf("%d %s", n, way))
	}
	if slices.Sort(kinds); len(kinds) > 0 {
		line += " (" + strings.Join(kinds, ", ") + ")"
	}
	line += fmt.Sprintf(", %d aborted, %d in progress; %s copied", aborted, len(moves)-done-aborted, formatBytes(copied))
	if len(stalls) > 0 {
		slices.Sort(stalls)
		line += fmt.Sprintf("; stall p50 %s, p99 %s", formatSeconds(stalls[rank(50, len(stalls))]), formatSeconds(stalls[rank(99, len(stalls))]))
	}
	return line + "."
}

// rank returns the index of a percentile of n sorted values.
func rank(percent, n int) int { return (percent*n+99)/100 - 1 }

// formatBytes returns a number of bytes with a unit.
func formatBytes(n int64) string {
	switch {
	case n <= 0:
		return "–"
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
}

// formatSeconds returns a time with a unit, or "–" if there is none.
func formatSeconds(s float64) string {
	switch {
	case s <= 0:
		return "–"
	case s < 1:
		return fmt.Sprintf("%.3g ms", s*1e3)
	}
	return fmt.Sprintf("%.3g s", s)
}
