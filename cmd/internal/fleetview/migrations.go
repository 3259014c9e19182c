package fleetview

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/xds/control"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// WriteMigrations prints migrations as text.
func WriteMigrations(w io.Writer, m control.Migrations) error {
	if len(m.Migrations) == 0 {
		_, err := fmt.Fprintln(w, "No request has migrated yet.")
		return err
	}
	t := report.Table{
		Header: []string{"began", "request", "cause", "front", "from", "to", "method", "state",
			"tokens", "rounds", "copied", "stall", "took"},
		Left: 8,
	}
	for _, migration := range m.Migrations {
		began, method, state := "–", migration.Method, migration.State
		if !migration.Started.IsZero() {
			began = migration.Started.Local().Format(time.TimeOnly)
		}
		if migration.Transport != "" {
			method += ", " + migration.Transport
		}
		if migration.Reason != "" {
			state += ": " + migration.Reason
		}
		t.Rows = append(t.Rows, []string{
			began, migration.Request, migration.Cause,
			string(migration.FrontEnd), string(migration.From), string(migration.To), method, state,
			fmt.Sprint(int64(migration.Tokens)), fmt.Sprint(migration.Rounds), formatBytes(migration.Bytes),
			formatSeconds(migration.Stall), formatSeconds(migration.Seconds),
		})
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
	line := fmt.Sprintf("%s: %d done", cli.Plural(moves, "migration"), done)
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
		at := func(percent int) string { return formatSeconds(stalls[percentileIndex(percent, len(stalls))]) }
		line += fmt.Sprintf("; stall p50 %s, p99 %s", at(50), at(99))
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
