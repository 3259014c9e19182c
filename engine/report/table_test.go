package report

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// widest returns how wide a table is in a terminal, without its notes.
func widest(t *testing.T, table Table) int {
	t.Helper()
	var out strings.Builder
	table.Notes = nil
	testkit.NoError(t, table.Text(&out))
	width := 0
	for line := range strings.Lines(out.String()) {
		width = max(width, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")))
	}
	return width
}

// TestTableWidth checks that no table is wider than a terminal, and that figures keep their units.
func TestTableWidth(t *testing.T) {
	results := append(runs(t), reuseResults()...)
	for _, table := range []Table{Runs(results), Latencies(results), Classes(results[:2]), Reuse(results), Attainment(results), Stages(results[1])} {
		if width := widest(t, table); width > maxTableWidth {
			t.Errorf("%s is %d columns wide", table.Title, width)
		}
	}
	long := strings.Repeat("a reason of several words ", 8)
	table := Table{Header: []string{"name of it", "figure", "reason"}, Left: 1, Rows: [][]string{{long + "12.3 ms", "12.3 ms", long}, {"b", "1 s", "c"}}}
	if width := widest(t, table); width > maxTableWidth || width < maxTableWidth-10 {
		t.Errorf("a table of long cells is %d columns wide", width)
	}
	var out strings.Builder
	if err := table.Text(&out); err != nil || !strings.Contains(out.String(), " 12.3 ms │") {
		t.Errorf("%v\n%s", err, &out)
	}
	figures := strings.Split(strings.Repeat("12.3 ms|", 15), "|")[:15]
	out.Reset()
	if err := (Table{Header: figures, Rows: [][]string{figures}}).Text(&out); err != nil || strings.Count(out.String(), " 12.3 ms ") < 15 {
		t.Errorf("figures and their units are divided: %v\n%s", err, &out)
	}
	table.Rows[0] = []string{strings.Repeat("x", 150), "12.3 ms", ""} // cannot be broken
	if width := widest(t, table); width < 150 {
		t.Errorf("a long word is cut: %d", width)
	}
}

// TestIdleUnknown leaves out the idle CPU if no run knows it, as in simulations.
func TestIdleUnknown(t *testing.T) {
	simulated := replay.Result{Name: "simulated", IdleCPU: -1, IdleCPUWorst: -1}
	if got := Runs([]replay.Result{simulated}); strings.Contains(strings.Join(got.Header, " ")+strings.Join(got.Rows[0], " "), "idle") || len(got.Rows[0]) != len(got.Header) {
		t.Errorf("%v", got)
	}
	got := Runs([]replay.Result{simulated, {Name: "measured", IdleCPU: 0.5, IdleCPUWorst: 0.25}})
	if got.Rows[0][7] != "–" || got.Rows[0][8] != "–" || got.Rows[1][7] != "50.0 %" {
		t.Errorf("%v", got.Rows)
	}
	short := replay.Result{Name: "less than a second", IdleCPU: 0.5, IdleCPUWorst: -1}
	if got := Runs([]replay.Result{short}).Rows[0][8]; got != "–" {
		t.Errorf("the worst second of a run without one: %s", got)
	}
}

// TestNoneCompleted prints no times for requests that all failed: 0 would be the best of all.
func TestNoneCompleted(t *testing.T) {
	failed := replay.Result{Name: "failed", Requests: 3, Engine: replay.Metrics{Classes: []replay.Group{{High: 1024, Requests: 3, Failed: 3}}}}
	for _, row := range append(Latencies([]replay.Result{failed}).Rows, Classes([]replay.Result{failed}).Rows...) {
		if slices.Contains(row, "0") {
			t.Errorf("%q", row)
		}
	}
}

// TestBestOther compares with the best of the others, which is not the first one, and never with a void run.
func TestBestOther(t *testing.T) {
	result := func(name, void string, ttft float64) replay.Result {
		r := replay.Result{Name: name, Void: void}
		r.Engine.TTFT = replay.Summary{Mean: ttft, P99: ttft}
		return r
	}
	results := []replay.Result{result("slow", "", 8), result("good", "", 2), result("best", "", 1), result("broken", "busy", 0.1), result("empty", "", 0)}
	for i, want := range []string{"× 8.00", "× 2.00", "× 0.50", "× 0.10", "–"} {
		if got := Latencies(results).Rows[i][6]; got != want {
			t.Errorf("%s: %s, want %s", results[i].Name, got, want)
		}
	}
	if got := Latencies(results[:1]).Rows[0][6]; got != "–" {
		t.Errorf("alone: %s", got)
	}
}

// TestStarvedCells checks that the table of cells says in how many the client got no CPU, and only then.
func TestStarvedCells(t *testing.T) {
	for late, want := range map[float64]bool{0: false, 0.9: true} {
		notes := strings.Join(Cells([]profiling.Log{{Cell: profiling.Cell{Low: 1, High: 2, Batch: 1}, Late: late}}).Notes, "\n")
		if got := strings.Contains(notes, "In 1 of 1 cells this machine was too busy"); got != want {
			t.Errorf("late for %v of the time: %s", late, notes)
		}
	}
}
