package frontier

import (
	"path/filepath"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/runstore"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// store keeps the figures of cells in files, so that a sweep that was interrupted goes on. A file is used
// again only by the same program for the same inputs. Without a folder it keeps nothing.
type store struct{ dir, program string }

// newStore returns the store in a folder, which is created when the first cell is stored; "" for none.
func newStore(dir string) (store, error) {
	if dir == "" {
		return store{}, nil
	}
	program, err := runstore.OfProgram()
	return store{dir, program}, err
}

// stored is what a file holds.
type stored struct {
	Rivals  []figures `json:"rivals"`
	Systems []figures `json:"systems"`
}

// path returns the file of a cell, "" for none.
func (st store) path(s sweep, g trace.Generator, c *cell) (string, error) {
	if st.dir == "" {
		return "", nil
	}
	key, err := runstore.OfJSON(st.program, s.profile, g, c.replicas, c.load, s.seeds, s.candidates, s.requests)
	return filepath.Join(st.dir, key+".json"), err
}

// read fills in a cell from its file; false if there is none.
func (store) read(path string, c *cell) (bool, error) {
	var in stored
	found, err := path != "", error(nil)
	if found {
		found, err = runstore.Read(path, &in)
	}
	if found {
		c.rivals, c.systems = in.Rivals, in.Systems
	}
	return found, err
}

// write stores a cell.
func (store) write(path string, c *cell) error {
	if path == "" {
		return nil
	}
	return runstore.Write(path, stored{c.rivals, c.systems})
}
