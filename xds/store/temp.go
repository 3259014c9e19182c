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

// tempFileMark is in the names of the files that are renamed over others.
const tempFileMark = ".tmp"

// tempFileLifetime is the age after which such a file is assumed to be abandoned.
const tempFileLifetime = time.Hour

// targetOfTempFile returns the name that a temporary file is to be renamed to.
func targetOfTempFile(name string) (of string, ok bool) {
	i := strings.LastIndex(name, tempFileMark)
	if i < 0 {
		return "", false
	}
	number := name[i+len(tempFileMark):]
	return name[:i], number != "" && strings.Trim(number, "0123456789") == ""
}

// removeStaleTempFiles removes the temporary files of processes that have ended from a
// directory, as far as ours accepts their targets.
func removeStaleTempFiles(dir string, ours func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var first error
	for _, e := range entries {
		if of, ok := targetOfTempFile(e.Name()); !ok || !ours(of) {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < tempFileLifetime {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) && first == nil {
			first = err
		}
	}
	return first
}

// makeFolder creates a directory in an existing parent unless it exists, and returns
// its absolute path.
func makeFolder(path string) (string, error) {
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
