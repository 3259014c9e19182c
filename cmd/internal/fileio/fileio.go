// Package fileio writes files atomically and reads them with a size limit.
//
// [WriteAtomic] replaces a file so that readers, also after a crash, see the old
// content or the new one, never a part of it. [Read] and [ReadAll] bound what a
// process reads from a file or stream that it does not control.
package fileio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// WriteAtomic replaces the file at path with content by way of a temporary file
// in the same directory: it writes, syncs and renames it. Permission bits of
// group and others for writing are never set.
func WriteAtomic(path string, content []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(mode&^0o022), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// Read returns the content of the file at path. The error names the file, also
// where it is larger than limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := ReadAll(f, limit)
	if err != nil {
		var named *os.PathError
		if errors.As(err, &named) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// ReadAll reads r to its end. More than limit bytes are an error.
func ReadAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("larger than %s", formatSize(limit))
	}
	return data, nil
}

// formatSize formats a limit in the largest unit that divides it.
func formatSize(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
