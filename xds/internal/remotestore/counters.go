package remotestore

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"time"
)

const (
	// MaxCounters bounds compressed counters: those of some 1,500 busy replicas.
	MaxCounters = 8 << 20
	// maxCountersJSON bounds what they may expand to.
	maxCountersJSON = 256 << 20
	// counterRate is how many bytes a second the counters of a control plane may add to the
	// history of etcd, also of a cluster's. Saves beyond it are skipped.
	counterRate = 16 << 10
)

// CompressCounters returns counters as they are stored in a kind of store. The error is for more than
// MaxCounters.
func CompressCounters(kind string, data []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() > MaxCounters {
		return nil, fmt.Errorf("counters in %s: %d bytes, at most %d are kept: with that many replicas, run several control planes, each of which counts by itself", kind, b.Len(), MaxCounters)
	}
	return b.Bytes(), nil
}

// ExpandCounters is the inverse of CompressCounters.
func ExpandCounters(kind string, stored io.Reader) ([]byte, error) {
	z, err := gzip.NewReader(stored)
	if err != nil {
		return nil, fmt.Errorf("counters in %s: %w", kind, err)
	}
	data, err := io.ReadAll(io.LimitReader(z, maxCountersJSON+1))
	if err == nil && len(data) > maxCountersJSON {
		err = fmt.Errorf("more than %d bytes", maxCountersJSON)
	}
	if err != nil {
		return nil, fmt.Errorf("counters in %s: %w", kind, err)
	}
	return data, nil
}

// LastSave is when counters were saved last, and how many compressed bytes they had. The zero value
// is that of counters that were not saved yet.
type LastSave struct {
	At   time.Time
	Size int
}

// IsRecent reports whether another save would fill the history of the store: the next one comes 8 s
// after it for each 128 KiB, which is 512 s at MaxCounters.
func (s LastSave) IsRecent() bool {
	return !s.At.IsZero() && time.Since(s.At) < time.Duration(s.Size)*time.Second/counterRate
}
