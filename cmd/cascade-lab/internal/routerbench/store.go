package routerbench

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/runstore"
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

// readRuns reads the stored runs of the cells from a directory.
func readRuns(dir string, cells []cell) (map[cell]run, error) {
	out := map[cell]run{}
	for _, c := range cells {
		path := filepath.Join(dir, c.file())
		var r run
		if found, err := runstore.Read(path, &r); err != nil {
			return nil, err
		} else if !found {
			continue
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
	return runstore.Write(filepath.Join(dir, r.file()), r)
}
