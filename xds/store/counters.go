package store

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxCounters bounds compressed counters: those of some 1,500 busy replicas.
	maxCounters = 8 << 20
	// maxCountersJSON bounds what they may expand to.
	maxCountersJSON = 256 << 20
	// counterRate is how many bytes a second the counters of a control plane may add to the
	// history of etcd, also of a cluster's. Saves beyond it are skipped.
	counterRate = 16 << 10
)

// FlowCounters keep the flow counters of one control plane, compressed. They implement
// fleet.Counters, and are used by one goroutine at a time.
type FlowCounters struct {
	s     *Store
	name  string
	saved time.Time // of the last save; zero: none
	size  int       // of the last save
}

// Counters returns the counters of a control plane.
func (s *Store) Counters(name string) *FlowCounters {
	return &FlowCounters{s: s, name: blobName(name)}
}

// Save implements fleet.Counters. Counters that were saved so recently that they would fill the
// history of etcd are skipped: a crash loses what was counted since the last write, up to 8 s for
// each 128 KiB of compressed counters, which is 512 s at 8 MiB.
func (k *FlowCounters) Save(data []byte) error {
	if !k.saved.IsZero() && time.Since(k.saved) < time.Duration(k.size)*time.Second/counterRate {
		return nil
	}
	return k.SaveLast(data)
}

// SaveLast implements fleet.Counters. It writes at once: a restart in order loses nothing. A save
// that is interrupted leaves the former one in force.
func (k *FlowCounters) SaveLast(data []byte) error {
	stored, err := compressCounters(data)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	former, newest, err := k.list(ctx)
	if err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	if _, err = k.s.putPieces(ctx, Counters, fmt.Sprintf("%s.%016x.%s", k.name, newest+1, newID()), stored); err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	k.saved, k.size = time.Now(), len(stored)
	if err := k.s.removeSets(ctx, Counters, former...); err != nil {
		return fmt.Errorf("counters: remove the former ones: %w", err)
	}
	return nil
}

// list returns what is stored, the newest first, and the number of the newest.
func (k *FlowCounters) list(ctx context.Context) (sets []blobSet, newest uint64, err error) {
	all, err := k.s.listSets(ctx, Counters)
	if err != nil {
		return nil, 0, err
	}
	for _, set := range slices.Backward(all) {
		if rest, ok := strings.CutPrefix(set.id, k.name+"."); ok {
			number, _, _ := strings.Cut(rest, ".")
			n, err := strconv.ParseUint(number, 16, 63)
			if err == nil {
				newest = max(newest, n)
			}
			sets = append(sets, set)
		}
	}
	return sets, newest, nil
}

// Load implements fleet.Counters.
func (k *FlowCounters) Load() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), blobTimeout)
	defer cancel()
	sets, _, err := k.list(ctx)
	for _, set := range sets {
		if !set.isComplete() {
			continue // its save was interrupted
		}
		stored, e := k.s.getPieces(ctx, Counters, set.id, set.of, maxCounters)
		if e == nil {
			var data []byte
			if data, e = expandCounters(bytes.NewReader(stored)); e == nil {
				return data, nil
			}
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		return nil, fmt.Errorf("counters: %w", err)
	}
	return nil, nil
}

// compressCounters returns counters as they are stored.
func compressCounters(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() > maxCounters {
		return nil, fmt.Errorf("counters: %d bytes, at most %d are kept: with that many replicas, run several control planes, "+
			"each of which counts by itself", b.Len(), maxCounters)
	}
	return b.Bytes(), nil
}

// expandCounters is the inverse of compressCounters.
func expandCounters(stored io.Reader) ([]byte, error) {
	z, err := gzip.NewReader(stored)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(z, maxCountersJSON+1))
	if err == nil && len(data) > maxCountersJSON {
		err = fmt.Errorf("more than %d bytes", maxCountersJSON)
	}
	return data, err
}
