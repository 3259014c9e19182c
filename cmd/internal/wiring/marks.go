package wiring

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
)

// setMarksFile sets the file of the given name in which a process keeps its slots'
// marks. A process without access to the default directory, such as a migrator
// whose host has no state directory, keeps none.
func (f *Fleet) setMarksFile(p *Policies, name string) error {
	dir := f.resolvePath(f.Fleet.Policies.Directory)
	if dir == "" {
		dir = f.StateDir()
	}
	if dir == "" {
		p.MarksWarning = f.Fleet.MarksWarning()
		return nil
	}
	dir = filepath.Join(dir, "marks")
	switch err := os.MkdirAll(dir, 0o700); {
	case err != nil && f.Fleet.Policies.Directory != "":
		return fmt.Errorf("policies.directory: %w", err)
	case err != nil:
		p.MarksWarning = "policies.directory: set a directory of this host: the one in state is not available: " + err.Error()
		return nil
	}
	p.MarksFile = filepath.Join(dir, name)
	// One that cannot be removed does no harm.
	_ = atomicfile.RemoveStale(dir, func(file string) bool { return file == name })
	return nil
}
