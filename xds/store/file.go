package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cascadeinfer/cascade/xds/internal/atomicfile"
)

const (
	// pollInterval is how often a watch reads the file even without an event: events do
	// not cross network file systems.
	pollInterval = time.Second
	// readTimeout is how long a watch waits for the file system before it reports an error.
	readTimeout = 3 * time.Second
	// lockRetryDelay is the pause between two attempts to take the lock, which is held
	// for the milliseconds of one write.
	lockRetryDelay = 5 * time.Millisecond
)

// File is a Store in a JSON file. The control planes of one host may share it; an
// operator may edit it. For those of several hosts see package etcd: what locks and renames
// promise over a network file system depends on its server and on its mount options. Writers lock a second
// file beside it (path + ".lock").
type File struct {
	path string
}

var _ Store = (*File)(nil)

// NewFile returns the store in the file at path. The file need not exist, but its
// directory must. Temporary files that interrupted writers left there more than an
// hour ago are removed.
func NewFile(path string) (*File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("plan file: %w", err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("plan file %s: directory: %w", path, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("plan file %s: %s is not a directory", path, filepath.Dir(path))
	}
	// Temporary files that cannot be removed do no harm.
	_ = atomicfile.RemoveStale(filepath.Dir(path), func(name string) bool { return name == filepath.Base(path) })
	return &File{path: path}, nil
}

// read returns the stored object; the zero object where there is no file.
func (f *File) read() (o Object, revision uint64, v Version, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("plan file %s: %w", f.path, err)
		}
	}()
	body, err := atomicfile.Read(f.path, MaxSize)
	if errors.Is(err, fs.ErrNotExist) {
		// Without its directory the file is not missing but out of reach.
		_, err = os.Stat(filepath.Dir(f.path))
		return Object{}, 0, "", err
	}
	if err != nil {
		return Object{}, 0, "", err
	}
	if o, revision, err = Decode(body); err != nil {
		return Object{}, 0, "", err
	}
	return o, revision, version(revision, body), nil
}

// version combines the revision, so that no version ever recurs, with a hash, so that
// an operator's edit makes a new version.
func version(revision uint64, body []byte) Version {
	sum := sha256.Sum256(body)
	return Version(strconv.FormatUint(revision, 10) + "-" + hex.EncodeToString(sum[:8]))
}

// CompareAndSwap implements Store. A file that cannot be read is not
// overwritten: the error says what is wrong with it.
//
// The lock is held only while the file is read again and replaced by a rename: a
// process that is stopped meanwhile blocks all writers.
func (f *File) CompareAndSwap(ctx context.Context, old Version, object Object) (v Version, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("plan file %s: %w", f.path, err)
		}
	}()
	_, revision, v, err := f.read()
	if err != nil {
		return "", errors.Unwrap(err) // the deferred wrap names the file
	}
	if v != old {
		return "", ErrConflict
	}
	body, err := Encode(object, revision+1)
	if err != nil {
		return "", err
	}
	temp, err := atomicfile.WriteTemp(f.path, body, 0o644, (*os.File).Sync)
	if err != nil {
		return "", err
	}
	defer os.Remove(temp) // after the rename there is none
	if err := f.replaceLocked(ctx, old, temp); err != nil {
		return "", err
	}
	if err := atomicfile.SyncDir(filepath.Dir(f.path)); err != nil {
		return "", err
	}
	return version(revision+1, body), nil
}

// replaceLocked renames a file over the stored one under the lock if the stored one has
// the version old.
func (f *File) replaceLocked(ctx context.Context, old Version, with string) error {
	unlock, err := lock(ctx, f.path+".lock")
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	defer unlock()
	_, _, v, err := f.read()
	if err != nil {
		return errors.Unwrap(err)
	}
	if v != old {
		return ErrConflict
	}
	return os.Rename(with, f.path)
}

// Watch implements Store.
func (f *File) Watch(ctx context.Context) <-chan Update {
	updates := make(chan Update)
	go func() {
		defer close(updates)
		f.watch(ctx, updates)
	}()
	return updates
}

// watch sends the content whenever it differs from the last one sent. It watches the
// directory, because writers replace the file by a rename.
func (f *File) watch(ctx context.Context, updates chan<- Update) {
	var events <-chan fsnotify.Event
	var watchErrors <-chan error
	if w, err := fsnotify.NewWatcher(); err == nil {
		defer w.Close()
		if w.Add(filepath.Dir(f.path)) == nil {
			events, watchErrors = w.Events, w.Errors
		}
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	var last Update
	var reader boundedReader
	first := true
	for {
		u := reader.read(ctx, f)
		if ctx.Err() != nil {
			return
		}
		if u.Err != nil {
			u.Object, u.Version = last.Object.Clone(), last.Version
		}
		if first || u.Version != last.Version || errorText(u.Err) != errorText(last.Err) {
			last, first = u, false
			last.Object = u.Object.Clone()
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
		}
		for wait := true; wait; {
			select {
			case e := <-events:
				wait = e.Name != f.path
			case <-watchErrors: // events may have been lost, by an overflow for instance
				wait = false
			case <-poll.C:
				wait = false
			case <-ctx.Done():
				return
			}
		}
	}
}

// boundedReader reads the file, and does not wait for a file system that hangs.
type boundedReader struct {
	pending chan Update // capacity 1: of the read that has not returned; nil: none
}

// read returns an error, and leaves the read to itself, if it takes longer than readTimeout. The next
// call waits for the same read.
func (r *boundedReader) read(ctx context.Context, f *File) Update {
	if r.pending == nil {
		pending := make(chan Update, 1)
		r.pending = pending
		go func() {
			o, _, v, err := f.read()
			pending <- Update{Object: o, Version: v, Err: err}
		}()
	}
	late := time.NewTimer(readTimeout)
	defer late.Stop()
	select {
	case u := <-r.pending:
		r.pending = nil
		return u
	case <-late.C:
		return Update{Err: fmt.Errorf("plan file %s: its file system has not answered: check the disk or the file server", f.path)}
	case <-ctx.Done():
		return Update{}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
