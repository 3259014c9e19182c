package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/engine/replay"
)

// run is one stored run.
type run struct {
	cell
	// Key identifies the inputs: requests, engines, and the contestant's settings.
	Key string `json:"key"`
	// Build identifies the program that made the run, with the engines and Cascade in it.
	Build   string        `json:"build"`
	Elapsed float64       `json:"elapsed_seconds"` // wall time, start and end of all processes included
	Result  replay.Result `json:"result"`
	// BesideNiced says that the CPU time of niced processes counts as idle in Result.
	BesideNiced bool `json:"beside_niced,omitempty"`
}

func (r run) elapsed() time.Duration { return time.Duration(r.Elapsed * float64(time.Second)) }

const maxRunFile = 4 << 20 // bytes

// readRuns reads the stored runs of the cells from a directory. What is no run, such as a file
// that a crash left half-written, is an error: it may hold minutes of work.
func readRuns(dir string, cells []cell) (map[cell]run, error) {
	out := map[cell]run{}
	for _, c := range cells {
		path := filepath.Join(dir, c.file())
		text, err := fileio.Read(path, maxRunFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var r run
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w; remove the file to make the run again", path, err)
		}
		if r.cell != c {
			return nil, fmt.Errorf("%s: holds the run %v; remove the file to make the run again", path, r.cell)
		}
		out[c] = r
	}
	return out, nil
}

// writeRun stores a run.
func writeRun(dir string, r run) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return fileio.WriteAtomic(filepath.Join(dir, r.file()), append(text, '\n'), 0o644)
}
