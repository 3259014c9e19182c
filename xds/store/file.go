package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// pollEvery is how often a watch looks at the file even when no event has
	// told it to: events do not cross network file systems.
	pollEvery = time.Second
	// lockRetry is the pause between two tries for the lock, which is held for
	// the milliseconds of one write.
	lockRetry = 5 * time.Millisecond
)

// File is a Store in a JSON file. Control planes on one machine, or on a
// shared file system with locks, may share it; an operator may edit it.
// Writers take a lock on a second file beside it (path + ".lock").
type File struct {
	path string
}

var _ Store = (*File)(nil)

// NewFile returns the store in the file at path. The file need not exist, its
// directory must. What writers that were cut short left there more than an hour ago
// is removed.
func NewFile(path string) (*File, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("plan file: %w", err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("plan file %s: its directory: %w", path, err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("plan file %s: %s is not a directory", path, filepath.Dir(path))
	}
	// What cannot be removed is in nobody's way.
	_ = sweepTemps(filepath.Dir(path), func(name string) bool { return name == filepath.Base(path) })
	return &File{path: path}, nil
}

// read returns what is stored; no file is no object.
func (f *File) read() (o Object, revision uint64, v Version, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("plan file %s: %w", f.path, err)
		}
	}()
	file, err := os.Open(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return Object{}, 0, "", nil
	}
	if err != nil {
		return Object{}, 0, "", err
	}
	defer file.Close()
	body, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return Object{}, 0, "", err
	}
	if len(body) > maxSize {
		return Object{}, 0, "", fmt.Errorf("larger than %d bytes", maxSize)
	}
	if o, revision, err = decode(body); err != nil {
		return Object{}, 0, "", err
	}
	return o, revision, version(revision, body), nil
}

// version is the revision and a hash: the revision so that no version ever
// comes back, the hash so that an operator's edit is one.
func version(revision uint64, body []byte) Version {
	sum := sha256.Sum256(body)
	return Version(strconv.FormatUint(revision, 10) + "-" + hex.EncodeToString(sum[:8]))
}

// CompareAndSwap implements Store. A file that cannot be read is not
// overwritten: the error says what is wrong with it.
//
// The lock is held for as long as it takes to look at the file and to rename
// another over it: a process that is stopped meanwhile stops all writers.
func (f *File) CompareAndSwap(ctx context.Context, old Version, object Object) (v Version, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("plan file %s: %w", f.path, err)
		}
	}()
	_, revision, v, err := f.read()
	if err != nil {
		return "", errors.Unwrap(err) // the file is named above
	}
	if v != old {
		return "", ErrConflict
	}
	body, err := encode(object, revision+1)
	if err != nil {
		return "", err
	}
	temp, err := prepare(f.path, body)
	if err != nil {
		return "", err
	}
	defer os.Remove(temp) // it is gone where all went well
	if err := f.exchange(ctx, old, temp); err != nil {
		return "", err
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil {
		return "", err
	}
	return version(revision+1, body), nil
}

// exchange puts a file in the place of the one of a version.
func (f *File) exchange(ctx context.Context, old Version, with string) error {
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

// prepare writes a file beside the one at path, wholly and across a loss of
// power, and returns its path.
func prepare(path string, body []byte) (name string, err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+tempMark+"*")
	if err != nil {
		return "", err
	}
	_, err = io.Copy(temp, bytes.NewReader(body))
	if err == nil {
		err = temp.Chmod(0o644)
	}
	if err == nil {
		err = temp.Sync()
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

// syncDir makes what was renamed in a directory survive a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
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

// watch sends what it reads whenever that differs from what it sent last. It
// watches the directory, because the file is replaced and not written to.
func (f *File) watch(ctx context.Context, updates chan<- Update) {
	var events <-chan fsnotify.Event
	var troubles <-chan error
	if w, err := fsnotify.NewWatcher(); err == nil {
		defer w.Close()
		if w.Add(filepath.Dir(f.path)) == nil {
			events, troubles = w.Events, w.Errors
		}
	}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	var last Update
	first := true
	for {
		o, _, v, err := f.read()
		u := Update{Object: o, Version: v}
		if err != nil {
			u = Update{Object: last.Object.clone(), Version: last.Version, Err: err}
		}
		if first || u.Version != last.Version || text(u.Err) != text(last.Err) {
			last, first = u, false
			last.Object = u.Object.clone()
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
		}
		for again := true; again; {
			select {
			case e := <-events:
				again = e.Name != f.path
			case <-troubles: // an overflow, for instance: events were lost
				again = false
			case <-poll.C:
				again = false
			case <-ctx.Done():
				return
			}
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
