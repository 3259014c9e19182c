package fleet

import (
	"errors"
	"io/fs"

	"github.com/cascadeinfer/cascade/xds/internal/atomicfile"
)

// Counters stores the counters of a fleet so that they survive restarts. It is used by
// one goroutine at a time.
type Counters interface {
	// Load returns what was written last, or nil if nothing was.
	Load() ([]byte, error)
	// Save replaces the content atomically: after a crash Load returns either the old
	// or the new content.
	// It may skip what comes too soon after what it has written.
	Save(data []byte) error
	// SaveLast is Save before the process ends: it skips nothing.
	SaveLast(data []byte) error
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
	data, err := atomicfile.Read(f.Path, maxCounterFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// Save replaces the file.
func (f CounterFile) Save(data []byte) error {
	if f.Path == "" {
		return nil
	}
	return atomicfile.Write(f.Path, data, 0o600)
}

// SaveLast replaces the file.
func (f CounterFile) SaveLast(data []byte) error { return f.Save(data) }
