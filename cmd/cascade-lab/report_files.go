package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/evaluation"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/runstore"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// storedRun is one finished simulation.
type storedRun struct {
	evaluation.Run
	Outcome evaluation.Outcome `json:"outcome"`
}

// runStore keeps finished simulations, by what they depend on: the inputs, the program, and the run.
type runStore struct{ dir, inputs string }

// newRunStore makes the directory. skew is the file of the measured skew; empty for the built-in fit.
func newRunStore(dir string, in evaluation.Inputs, skew string) (*runStore, error) {
	program, err := runstore.OfProgram()
	if err != nil {
		return nil, err
	}
	var table []byte
	if skew != "" {
		const maxTable = 64 << 20
		if table, err = atomicfile.Read(skew, maxTable); err != nil {
			return nil, err
		}
	}
	inputs, err := runstore.OfJSON(program, in.Workloads, in.Engines, table)
	if err != nil {
		return nil, err
	}
	return &runStore{dir, inputs}, os.MkdirAll(dir, 0o755)
}

// path returns the file of a run.
func (s *runStore) path(r evaluation.Run) (string, error) {
	name, err := runstore.OfJSON(s.inputs, r)
	return filepath.Join(s.dir, name+".json"), err
}

// read returns the outcomes of the runs that are stored. A file that holds something else is an error.
func (s *runStore) read(runs []evaluation.Run) (map[evaluation.Run]evaluation.Outcome, error) {
	out := map[evaluation.Run]evaluation.Outcome{}
	for _, r := range runs {
		path, err := s.path(r)
		if err != nil {
			return nil, err
		}
		var stored storedRun
		if found, err := runstore.Read(path, &stored); err != nil {
			return nil, err
		} else if !found {
			continue
		}
		if stored.Run != r {
			return nil, fmt.Errorf("%s: holds another run, %s; remove the file to make the run again", path, stored.Run)
		}
		out[r] = stored.Outcome
	}
	return out, nil
}

// write stores a run.
func (s *runStore) write(r evaluation.Run, out evaluation.Outcome) error {
	path, err := s.path(r)
	if err != nil {
		return err
	}
	return runstore.Write(path, storedRun{r, out})
}

// storedName is what the file of a stored run is called.
var storedName = regexp.MustCompile(`^[0-9a-f]{16}\.json$`)

// removeOthers removes the stored runs that are not of these: of other inputs, or of another build of the program.
func (s *runStore) removeOthers(runs []evaluation.Run) error {
	keep := map[string]bool{}
	for _, r := range runs {
		path, err := s.path(r)
		if err != nil {
			return err
		}
		keep[filepath.Base(path)] = true
	}
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if name := f.Name(); !keep[name] && storedName.MatchString(name) {
			if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// listOutcomes returns the outcomes in the order of the runs.
func listOutcomes(runs []evaluation.Run, outcomes map[evaluation.Run]evaluation.Outcome) []storedRun {
	out := make([]storedRun, len(runs))
	for i, r := range runs {
		out[i] = storedRun{r, outcomes[r]}
	}
	return out
}

// writeReport writes all files of the report.
func writeReport(dir string, page webpage.Page, timings string, runs []evaluation.Run, outcomes map[evaluation.Run]evaluation.Outcome) error {
	var html, markdown bytes.Buffer
	if err := errors.Join(page.HTML(&html), page.Markdown(&markdown)); err != nil {
		return err
	}
	results, err := json.MarshalIndent(listOutcomes(runs, outcomes), "", " ")
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"report.html": html.Bytes(), "report.md": markdown.Bytes(), "timings.md": []byte(timings), "results.json": append(results, '\n'),
	} {
		if err := atomicfile.Write(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// maxTraceRequests bounds a trace of the report, which is held in memory.
const maxTraceRequests = 1_000_000

// readWorkload reads a trace. Errors name file, line and field.
func (f *reportFlags) readWorkload(path string) (w evaluation.Workload, err error) {
	file, err := os.Open(path)
	if err != nil {
		return w, err
	}
	defer file.Close()
	name := filepath.Base(path)
	name, _, _ = strings.Cut(name, ".")
	dropped := []*trace.Error{}
	source, err := trace.Shape{Spread: f.spread, MaxLength: evaluation.MaxLength, Limit: maxTraceRequests, Seed: f.seed, Rate: lengthsRate}.Stream(func() (trace.Source, error) {
		if _, err := file.Seek(0, 0); err != nil {
			return nil, err
		}
		return trace.NewReader(file, path)
	})
	if err != nil {
		return w, err
	}
	if f.skipInvalid {
		source = trace.SkipInvalid(source, func(bad *trace.Error) { dropped = append(dropped, bad) })
	}
	requests, err := trace.Collect(source)
	switch {
	case err != nil:
		return w, err
	case len(requests) == 0 && len(dropped) > 0:
		return w, fmt.Errorf("%w; no line is valid", dropped[0])
	case len(requests) == 0:
		return w, fmt.Errorf("%s: %w", path, trace.ErrEmpty)
	}
	w = evaluation.Workload{Name: name, Requests: requests, Source: fmt.Sprintf("%s, %d requests", filepath.Base(path), len(requests))}
	if len(dropped) > 0 {
		w.Source += fmt.Sprintf("; %d invalid lines were dropped", len(dropped))
	}
	if f.spread > 0 {
		w.Source += fmt.Sprintf("; arrivals spread over %v", f.spread)
	}
	return w, nil
}

// lengthsRate is the rate, in requests/s, of a trace while it is read: every run stretches it to its own.
const lengthsRate = 1.0

// formatDuration prints a time that is estimated.
func formatDuration(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%d s", max(1, int(d.Seconds())))
	}
	return fmt.Sprintf("%d min", int((d+30*time.Second)/time.Minute))
}
