package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
)

// createRecords creates the file for a run's requests. Without a directory it returns a writer that
// discards them.
func createRecords(dir, name string) (io.WriteCloser, error) {
	if dir == "" {
		return nopCloser{io.Discard}, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return os.Create(filepath.Join(dir, slug(name)+".jsonl"))
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// writeResults writes results.json, tables.md and the pictures of runs into a directory. further
// holds more pictures by their names.
func writeResults(dir string, results []replay.Result, further map[string]func() (report.Picture, error)) error {
	toJSON := func(w io.Writer) error { return report.WriteJSON(w, results) }
	toMarkdown := func(w io.Writer) (err error) { // for a README
		for _, t := range resultTables(results) {
			err = errors.Join(err, t.Markdown(w))
		}
		return err
	}
	if err := writeFile(filepath.Join(dir, "results.json"), toJSON); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(dir, "tables.md"), toMarkdown); err != nil {
		return err
	}
	draw := map[string]func() (report.Picture, error){
		"latency":   func() (report.Picture, error) { return report.Distribution(results, report.Normalised) },
		"ttft":      func() (report.Picture, error) { return report.Distribution(results, report.TTFT) },
		"by-length": func() (report.Picture, error) { return report.ByLength(results, report.Normalised) },
		"prefixes":  func() (report.Picture, error) { return report.ReusePicture(results) },
		"timeline":  func() (report.Picture, error) { return report.Timeline(results) },
	}
	maps.Copy(draw, further)
	for name, picture := range draw {
		pic, err := picture()
		if errors.Is(err, report.ErrNoData) {
			continue
		}
		if err != nil {
			return err
		}
		if err := writePicture(filepath.Join(dir, name+".svg"), pic); err != nil {
			return err
		}
	}
	return nil
}

// resultTables returns the tables that all commands show of runs.
func resultTables(results []replay.Result) []report.Table {
	tables := []report.Table{report.Runs(results), report.Latencies(results), report.Classes(results)}
	for _, t := range []report.Table{report.Reuse(results), report.Attainment(results)} {
		if len(t.Rows) > 0 {
			tables = append(tables, t)
		}
	}
	return tables
}

// writePicture writes a plot to an .svg file.
func writePicture(path string, pic report.Picture) error {
	if filepath.Ext(path) != ".svg" {
		return fmt.Errorf("%s: a picture's file ends in .svg", path)
	}
	return writeFile(path, pic.Write)
}

// writeFile writes a file once all of its text is there.
func writeFile(path string, write func(io.Writer) error) error {
	var text bytes.Buffer
	if err := write(&text); err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o666)
}
