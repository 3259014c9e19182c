package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
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

Columns:
  cause    growth (longer than its stage), outlier (its replica carries more than its
           share), drain, spill (its replica is full), prefill (a prefill replica has
           computed its prompt) or engine lost; prefix is no move: the KV of a prompt's
           beginning was copied before its first token
  front    the replica that keeps the client's connection, whichever replica generates
  method   live (KV blocks copied while it decodes, with the transport), handoff (KV
           fetched by the engines' own connector) or reprompt (KV computed again from
           the token ids)
  tokens   the request's length when the migration began
  rounds   how often blocks were sent; copied: their bytes
  stall    how long the client waited for the first token after the freeze

--json prints the control plane's answer as it is.`,
		Example: `  cascade migrations --watch
  cascade migrations --limit 500 --json | jq '[.migrations[].stall_seconds] | max'`,
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
	r := controlRequest{base: base, path: "migrations", query: url.Values{"limit": {strconv.Itoa(f.limit)}}}
	return s.repeat(cmd, f.watchFlags, func(ctx context.Context) error { return show(ctx, s, r, writeMigrations) })
}

// writeMigrations prints migrations as text.
func writeMigrations(w io.Writer, m control.Migrations) error {
	if len(m.Migrations) == 0 {
		_, err := fmt.Fprintln(w, "No request has migrated yet.")
		return err
	}
	t := report.Table{
		Header: []string{"began", "request", "cause", "front", "from", "to", "method", "state", "tokens", "rounds", "copied", "stall", "took"}, Left: 8,
	}
	for _, migration := range m.Migrations {
		began, method, state := "–", migration.Method, migration.State
		if migration.Started != nil {
			began = migration.Started.Local().Format(time.TimeOnly)
		}
		if migration.Transport != "" {
			method += ", " + migration.Transport
		}
		if migration.Reason != "" {
			state += ": " + migration.Reason
		}
		t.Rows = append(t.Rows, []string{began, migration.Request, migration.Cause, string(migration.Frontend), string(migration.From), string(migration.To), method, state,
			fmt.Sprint(int64(migration.Tokens)), fmt.Sprint(migration.Rounds), formatBytes(migration.Bytes), formatSeconds(migration.Stall), formatSeconds(migration.Seconds)})
	}
	t.Notes = []string{summarizeMigrations(m.Migrations)}
	return t.Text(w)
}

// summarizeMigrations returns one line about migrations.
func summarizeMigrations(migrations []control.Migration) string {
	methods, stalls, copied := map[string]int{}, []float64(nil), int64(0)
	done, aborted, prefixes, copiedPrefixes := 0, 0, 0, 0
	for _, m := range migrations {
		copied += m.Bytes
		if m.Cause == loadreport.CausePrefix { // no request moved
			prefixes++
			if m.State == loadreport.MigrationDone {
				copiedPrefixes++
			}
			continue
		}
		switch m.State {
		case loadreport.MigrationDone:
			done++
			methods[m.Method]++
			stalls = append(stalls, m.Stall)
		case loadreport.MigrationAborted:
			aborted++
		}
	}
	moves := len(migrations) - prefixes
	line := fmt.Sprintf("%s: %d done", plural(moves, "migration"), done)
	var kinds []string
	for method, n := range methods {
		kinds = append(kinds, fmt.Sprintf("%d %s", n, method))
	}
	if slices.Sort(kinds); len(kinds) > 0 {
		line += " (" + strings.Join(kinds, ", ") + ")"
	}
	line += fmt.Sprintf(", %d aborted, %d in progress; %s copied", aborted, moves-done-aborted, formatBytes(copied))
	if len(stalls) > 0 {
		slices.Sort(stalls)
		line += fmt.Sprintf("; stall p50 %s, p99 %s", formatSeconds(stalls[percentileIndex(50, len(stalls))]), formatSeconds(stalls[percentileIndex(99, len(stalls))]))
	}
	if prefixes > 0 {
		line += fmt.Sprintf("; beginnings of prompts copied before the first token: %d of %d tried", copiedPrefixes, prefixes)
	}
	return line + "."
}

// percentileIndex returns the index of a percentile of n sorted values.
func percentileIndex(percent, n int) int { return (percent*n+99)/100 - 1 }

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
