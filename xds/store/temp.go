package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// tempMark is in the names of the files that become others by being renamed.
const tempMark = ".tmp"

// tempLife is how old such a file is when nobody can be writing it any more.
const tempLife = time.Hour

// tempOf returns the name that a file with such a name was to get.
func tempOf(name string) (of string, ok bool) {
	i := strings.LastIndex(name, tempMark)
	if i < 0 {
		return "", false
	}
	number := name[i+len(tempMark):]
	return name[:i], number != "" && strings.Trim(number, "0123456789") == ""
}

// sweepTemps removes what processes that ended left in a directory of files that
// were to get one of our names.
func sweepTemps(dir string, ours func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var first error
	for _, e := range entries {
		if of, ok := tempOf(e.Name()); !ok || !ours(of) {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < tempLife {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) && first == nil {
			first = err
		}
	}
	return first
}

// folder makes a directory whose parent exists, unless it is there, and returns its
// absolute path.
func folder(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		err = os.Mkdir(path, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", path)
	}
	return path, nil
}
