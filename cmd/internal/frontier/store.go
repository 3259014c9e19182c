package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cascadeinfer/cascade/cmd/internal/digest"
	"github.com/cascadeinfer/cascade/cmd/internal/fileio"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// maxStored bounds the file of a stored cell.
const maxStored = 1 << 20

// store keeps the figures of cells in files, so that a sweep that was interrupted goes on. A file is used
// again only by the same program for the same inputs. Without a folder it keeps nothing.
type store struct{ dir, program string }

// newStore returns the store in a folder, which is created when the first cell is stored; "" for none.
func newStore(dir string) (store, error) {
	if dir == "" {
		return store{}, nil
	}
	program, err := digest.OfProgram()
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
	key, err := digest.OfJSON(st.program, s.profile, g, c.replicas, c.load, s.seeds, s.candidates, s.requests)
	return filepath.Join(st.dir, key+".json"), err
}

// read fills in a cell from its file; false if there is none.
func (store) read(path string, c *cell) (bool, error) {
	if path == "" {
		return false, nil
	}
	text, err := fileio.Read(path, maxStored)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var in stored
	if err := json.Unmarshal(text, &in); err != nil {
		return false, fmt.Errorf("%s: %w; remove the file, and the cell is simulated again", path, err)
	}
	c.rivals, c.systems = in.Rivals, in.Systems
	return true, nil
}

// write stores a cell. A file is complete or absent.
func (store) write(path string, c *cell) error {
	if path == "" {
		return nil
	}
	text, err := json.Marshal(stored{c.rivals, c.systems})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return fileio.WriteAtomic(path, text, 0o644)
}
