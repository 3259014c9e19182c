package fleet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Counters stores the counters of a fleet so that they survive restarts. It is used by
// one goroutine at a time.
type Counters interface {
	// Load returns what Save last wrote, or nil if it was never called.
	Load() ([]byte, error)
	// Save replaces the content atomically: after a crash Load returns either the old
	// or the new content.
	Save(data []byte) error
}

// CounterFile is Counters in a file. The zero value keeps nothing.
type CounterFile struct{ Path string }

// maxCounterFile bounds the file: 10,000 replicas with 1,000 buckets fit.
const maxCounterFile = 1 << 30

var _ Counters = CounterFile{}

// Load reads the file. A missing file is empty.
func (f CounterFile) Load() ([]byte, error) {
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
	data, err := io.ReadAll(io.LimitReader(file, maxCounterFile+1))
	if err == nil && len(data) > maxCounterFile {
		err = fmt.Errorf("%s: larger than %d bytes", f.Path, maxCounterFile)
	}
	return data, err
}

// Save replaces the file by a synced temporary file.
func (f CounterFile) Save(data []byte) (err error) {
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
