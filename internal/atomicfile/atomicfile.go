// Package atomicfile replaces files as a whole, and reads them with a size limit.
//
// [Write] replaces a file so that a reader, also one after a crash, sees either the old
// or the new content: a temporary file beside the old one is renamed over it. [RemoveStale]
// removes those of writers that were interrupted. [Read] and [ReadAll] bound what a process
// reads from a file or stream that it does not control.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Write replaces the file at path durably.
func Write(path string, body []byte, perm fs.FileMode) error {
	temp, err := WriteTemp(path, body, perm, (*os.File).Sync)
	if err != nil {
		return err
	}
	defer os.Remove(temp) // after the rename there is none
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// WriteUnsynced replaces the file at path. A power failure may undo it.
func WriteUnsynced(path string, body []byte, perm fs.FileMode) error {
	temp, err := WriteTemp(path, body, perm, func(*os.File) error { return nil })
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	return os.Rename(temp, path)
}

// WriteTemp writes a temporary file beside the one at path, and returns its path. sync
// is called before it is closed.
func WriteTemp(path string, body []byte, perm fs.FileMode, sync func(*os.File) error) (name string, err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+tempFileMark+"*")
	if err != nil {
		return "", err
	}
	if _, err = temp.Write(body); err == nil {
		err = temp.Chmod(perm)
	}
	if err == nil {
		err = sync(temp)
	}
	if e := temp.Close(); err == nil {
		err = e
	}
	if err != nil {
		os.Remove(temp.Name())
		return "", err
	}
	return temp.Name(), nil
}

// SyncDir makes a rename in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

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

// RemoveStale removes the temporary files of processes that have ended from a
// directory, as far as ours accepts their targets.
func RemoveStale(dir string, ours func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if of, ok := targetOfTempFile(e.Name()); !ok || !ours(of) {
			continue
		}
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < tempFileLifetime {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
