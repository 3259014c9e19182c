package wiring

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// setMarksFile sets the file of the given name in which a process keeps its slots'
// marks. A process without access to the default directory, such as a migrator
// whose host has no state directory, keeps none.
func (f *Fleet) setMarksFile(p *Policies, name string) error {
	dir := f.resolvePath(f.Fleet.Policies.Marks)
	if dir == "" && f.StateDir() != "" {
		dir = filepath.Join(f.StateDir(), "marks")
	}
	if dir == "" {
		p.MarksWarning = f.Fleet.MarksWarning()
		return nil
	}
	switch err := os.MkdirAll(dir, 0o700); {
	case err != nil && f.Fleet.Policies.Marks != "":
		return fmt.Errorf("policies.marks: %w", err)
	case err != nil:
		p.MarksWarning = "policies.marks: set a directory of this host: the default in state is not available: " + err.Error()
		return nil
	}
	p.MarksFile = filepath.Join(dir, name)
	removeStaleMarks(p.MarksFile, time.Now().Add(-staleMarksAge))
	return nil
}

// staleMarksAge is the age at which temporary files of a process that was killed
// are removed.
const staleMarksAge = time.Hour

// removeStaleMarks removes temporary files of a marks file that are older than
// before. A file that cannot be removed does no harm.
func removeStaleMarks(file string, before time.Time) {
	entries, _ := os.ReadDir(filepath.Dir(file))
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), "."+filepath.Base(file)+"-")
		if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
			continue
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(filepath.Dir(file), e.Name()))
		}
	}
}
