package routerbench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// evidence is the outcome of a matrix, as results.json has it.
type evidence struct {
	Trace       string       `json:"trace"`
	Conditions  []string     `json:"conditions"` // sentences: machine, engines, settings
	Subject     string       `json:"subject"`
	Summaries   []summary    `json:"summaries"`
	Comparisons []comparison `json:"comparisons"`

	contestants []string
	rates       []float64
}

// milliseconds prints an interval of seconds in ms, as the mean and half its width.
func milliseconds(i interval.Interval) string {
	switch i.Runs {
	case 0:
		return "–"
	case 1:
		return report.FormatNumber(1000 * i.Mean)
	}
	return report.FormatNumber(1000*i.Mean) + " ± " + report.FormatNumber(500*(i.High-i.Low))
}

// figuresTable lists every figure of every contestant.
func (e evidence) figuresTable() report.Table {
	t := report.Table{Title: "Latency in ms of engine time, " + e.Trace, Header: []string{"requests/s", "system", "runs"}, Left: 2, Group: len(e.contestants)}
	for _, f := range figures {
		t.Header = append(t.Header, f.Name)
	}
	t.Header = append(t.Header, "failed", "CPU idle")
	for _, s := range e.Summaries {
		runs := strconv.Itoa(s.Runs)
		if s.Void > 0 {
			runs += fmt.Sprintf(" (+%d void)", s.Void)
		}
		row := []string{report.FormatNumber(s.Rate), s.Contestant, runs}
		for _, f := range figures {
			row = append(row, milliseconds(s.Figures[f.Name]))
		}
		idle := "unknown"
		if s.Idle >= 0 {
			idle = fmt.Sprintf("%.0f %%", 100*s.Idle)
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%d of %d", s.Failed, s.Requests), idle))
	}
	t.Notes = append(t.Notes, fmt.Sprintf("Mean over seeds ± half of the %.0f %% interval (Student's t). CPU idle is the least of any run; the runs of a machine with less than 30 %% are void and count in no figure. "+
		"Normalised latency is end to end, per token received; the longest decile is the tenth of the requests with the longest prompts, by its normalised latency.", 100*interval.Level))
	t.Notes = append(t.Notes, e.Conditions...)
	return t
}

// sharesTable lists the figures of the prefix caches and the attainment of the SLO; it has no columns but
// the first two if no run has any.
func (e evidence) sharesTable() report.Table {
	t := report.Table{Title: "Prefix caches and SLO attainment, " + e.Trace, Header: []string{"requests/s", "system"}, Left: 2, Group: len(e.contestants)}
	var names []string
	for _, f := range reuseFigures {
		names = append(names, f.Name)
	}
	for _, times := range replay.Multiples {
		names = append(names, attainmentName(times))
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return !slices.ContainsFunc(e.Summaries, func(s summary) bool { return s.Shares[name].Runs > 0 })
	})
	t.Header = append(t.Header, names...)
	for _, s := range e.Summaries {
		row := []string{report.FormatNumber(s.Rate), s.Contestant}
		for _, name := range names {
			row = append(row, shareCell(name, s.Shares[name]))
		}
		t.Rows = append(t.Rows, row)
	}
	t.Notes = []string{"The hit rate is the cached prompt tokens over all prompt tokens; the ideal is that of one cache for all requests which loses nothing. " +
		"Load CV is the coefficient of variation of the engines' work of the last 30 s inside a stage. The SLO is the mean TTFT and TPOT of a request that is alone, by the profile."}
	return t
}

// shareCell prints a share in percent, the load CV as it is.
func shareCell(name string, i interval.Interval) string {
	if i.Runs == 0 {
		return "–"
	}
	factor, unit := 100.0, " %"
	if name == loadCV {
		factor, unit = 1, ""
	}
	text := report.FormatNumber(factor * i.Mean)
	if i.Runs > 1 {
		text += " ± " + report.FormatNumber(factor*(i.High-i.Low)/2)
	}
	return text + unit
}

// verdictsTable lists the subject against its rivals.
func (e evidence) verdictsTable() report.Table {
	t := report.Table{Title: e.Subject + " against each rival, " + e.Trace, Header: []string{"requests/s", "rival", "seeds"}, Left: 2}
	for _, f := range figures {
		t.Header = append(t.Header, f.Name)
	}
	reasons := map[string]bool{}
	for i := 0; i < len(e.Comparisons); i += len(figures) {
		first := e.Comparisons[i]
		row := []string{report.FormatNumber(first.Rate), first.Rival, strconv.Itoa(first.Seeds)}
		for _, c := range e.Comparisons[i : i+len(figures)] {
			row = append(row, ratioCell(c))
		}
		t.Rows = append(t.Rows, row)
		if first.Withheld != "" && !reasons[first.Withheld] {
			reasons[first.Withheld] = true
			t.Notes = append(t.Notes, fmt.Sprintf("No verdict on %s at %s requests/s: %s.", first.Rival, report.FormatNumber(first.Rate), first.Withheld))
		}
	}
	t.Notes = append([]string{fmt.Sprintf("The ratio is %s over rival, below 1 is faster: the geometric mean over the seeds that both have served, and its %.0f %% interval. "+
		"A verdict, better or worse, is given only where the whole interval is on one side of 1, of at least %d seeds. Each is of one figure: of 20 figures of equal systems, one is expected to differ.", e.Subject, 100*interval.Level, interval.MinRuns)}, t.Notes...)
	return t
}

// ratioCell prints a ratio with its interval and verdict.
func ratioCell(c comparison) string {
	switch c.Ratio.Runs {
	case 0:
		return "–"
	case 1:
		return "× " + report.FormatNumber(c.Ratio.Mean)
	}
	text := fmt.Sprintf("× %s (%s–%s)", report.FormatNumber(c.Ratio.Mean), report.FormatNumber(c.Ratio.Low), report.FormatNumber(c.Ratio.High))
	if c.Verdict != "" {
		text += " " + c.Verdict
	}
	return text
}

// picture draws the figures of all contestants.
func (e evidence) picture() (report.Picture, error) {
	var panels []interval.Panel
	for _, f := range figures {
		p := interval.Panel{Figure: f.Name, Systems: e.contestants}
		p.Series = e.seriesByRate(func(s summary) interval.Interval { return s.Figures[f.Name] })
		panels = append(panels, p)
	}
	for _, f := range reuseFigures {
		p := interval.Panel{Figure: f.Name, Systems: e.contestants, Plain: true}
		p.Series = e.seriesByRate(func(s summary) interval.Interval { return s.Shares[f.Name] })
		panels = append(panels, p)
	}
	return interval.Draw(panels)
}

// seriesByRate returns a series for each rate, with a figure of each contestant.
func (e evidence) seriesByRate(figure func(summary) interval.Interval) (all []interval.Series) {
	for _, rate := range e.rates {
		series := interval.Series{Name: report.FormatNumber(rate) + " requests/s"}
		for _, s := range e.Summaries {
			if s.Rate == rate {
				series.Intervals = append(series.Intervals, figure(s))
			}
		}
		all = append(all, series)
	}
	return all
}

// write writes results.json, tables.md and routers.svg into a directory.
func (e evidence) write(dir string) error {
	text, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, "results.json"), append(text, '\n'), 0o644); err != nil {
		return err
	}
	tables, err := os.Create(filepath.Join(dir, "tables.md"))
	if err != nil {
		return err
	}
	if err := errors.Join(e.figuresTable().Markdown(tables), writeLine(tables), e.sharesTable().Markdown(tables), writeLine(tables), e.verdictsTable().Markdown(tables), tables.Close()); err != nil {
		return err
	}
	pic, err := e.picture()
	if errors.Is(err, report.ErrNoData) { // all runs are void
		return nil
	}
	if err != nil {
		return err
	}
	svg, err := os.Create(filepath.Join(dir, "routers.svg"))
	if err != nil {
		return err
	}
	return errors.Join(pic.Write(svg), svg.Close())
}

func writeLine(w io.Writer) error {
	_, err := fmt.Fprintln(w)
	return err
}

// print prints the tables for a terminal.
func (e evidence) print(w io.Writer) error {
	return errors.Join(e.figuresTable().Text(w), e.sharesTable().Text(w), e.verdictsTable().Text(w))
}
