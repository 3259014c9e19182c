// Package runstore keeps the results of long measurements in files, so that one that was interrupted goes on. Digests
// name inputs and programs: a result is used again only for the inputs, and by the program, that made it.
package runstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// maxFile bounds a file, in bytes.
const maxFile = 4 << 20

// Read reads a result into v, and reports whether there is one. A file that holds no result is an error: it may
// hold minutes of work.
func Read(path string, v any) (found bool, err error) {
	text, err := atomicfile.Read(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, v)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w; remove the file to make the run again", path, err)
	}
	return true, nil
}

// Write stores a result in a file, which is complete or absent, and creates its directory.
func Write(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o644)
}
