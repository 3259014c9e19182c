package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Counters keeps the counters of a fleet across restarts. One goroutine at a
// time uses it.
type Counters interface {
	// Load returns what Save last wrote, or nothing when there is nothing.
	Load() ([]byte, error)
	// Save replaces the content: after a crash Load returns the old content or
	// the new, never a part.
	Save(data []byte) error
}

// File is Counters in a file. The zero value keeps nothing.
type File struct{ Path string }

var _ Counters = File{}

// Load reads the file; a missing one is empty.
func (f File) Load() ([]byte, error) {
	if f.Path == "" {
		return nil, nil
	}
	file, err := os.Open(f.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxCounters+1))
	if err == nil && len(data) > maxCounters {
		err = fmt.Errorf("%s: larger than %d bytes", f.Path, maxCounters)
	}
	return data, err
}

// Save writes a temporary file beside the old one, syncs it and renames it.
func (f File) Save(data []byte) (err error) {
	if f.Path == "" {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(f.Path), filepath.Base(f.Path)+".tmp*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			tmp.Close()
			os.Remove(tmp.Name())
		}
	}()
	if _, err = tmp.Write(data); err != nil {
		return err
	}
	if err = tmp.Sync(); err != nil {
		return err
	}
	if err = tmp.Close(); err != nil {
		return err
	}
	if err = os.Rename(tmp.Name(), f.Path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(f.Path))
}

// syncDir makes a rename in the directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
