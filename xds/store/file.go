package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/internal/wakeup"
)

const (
	// lockRetryDelay is the pause between two attempts to take the lock, which is held
	// for the milliseconds of one write.
	lockRetryDelay = 5 * time.Millisecond
	// maxBlobFile bounds a blob, in bytes.
	maxBlobFile = 64 << 20
)

// file is a Backend in a directory: its root is plan.json, its blobs are files in a directory of
// their folder.
type file struct {
	dir string
	// What the file system does is done one at a time for the root, for its writes, and for each
	// folder: then one file that hangs does not keep the others.
	reads, writes chan struct{}
	folders       map[string]chan struct{}
}

// rootFile is the name of the file of the root. Writers lock a second file beside it.
const (
	rootFile   = "plan.json"
	lockSuffix = ".lock"
)

// NewFile returns the Backend in a directory, which the control planes of one host may share. It
// creates the directory unless it exists. For those of several hosts see
// packages etcd and kubernetes: what locks and renames promise over a network file system depends
// on its server and on its mount options.
func NewFile(dir string) (Backend, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	f := &file{
		dir: dir, reads: make(chan struct{}, 1), writes: make(chan struct{}, 1),
		folders: make(map[string]chan struct{}),
	}
	for _, folder := range Folders {
		f.folders[folder] = make(chan struct{}, 1)
	}
	// Temporary files that cannot be removed do no harm.
	_ = atomicfile.RemoveStale(dir, func(name string) bool { return name == rootFile })
	return f, nil
}

func (f *file) path() string { return filepath.Join(f.dir, rootFile) }

// String implements Backend.
func (f *file) String() string { return "plan file " + f.path() }

// Limits implements Backend. The whole object is in the root, which operators can read.
func (f *file) Limits() Limits { return Limits{Plan: MaxSize, State: MaxSize, Blob: maxBlobFile} }

// Close implements Backend.
func (f *file) Close() error { return nil }

// await returns what do returns. It does not wait for a file system that hangs: where ctx ends
// first, do is left to itself, and whoever uses the gate next waits for it.
func await[T any](ctx context.Context, gate chan struct{}, do func(context.Context) (T, error)) (out T, err error) {
	type result struct {
		out T
		err error
	}
	done := make(chan result, 1)
	select {
	case gate <- struct{}{}:
		go func() {
			r, err := do(ctx)
			<-gate
			done <- result{r, err}
		}()
		select {
		case r := <-done:
			return r.out, r.err
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return out, fmt.Errorf("%w: its file system has not answered: check the disk or the file server", ErrUnavailable)
	}
	return out, ctx.Err()
}

// ReadRoot implements Backend.
func (f *file) ReadRoot(ctx context.Context) (Root, error) {
	r, err := await(ctx, f.reads, func(context.Context) (Root, error) { return f.readRoot() })
	return r, f.describe(err)
}

func (f *file) describe(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", f, err)
	}
	return nil
}

func (f *file) readRoot() (Root, error) {
	data, err := atomicfile.Read(f.path(), 3*MaxSize) // indented
	if errors.Is(err, fs.ErrNotExist) {
		// Without its directory the file is not missing but out of reach.
		_, err = os.Stat(f.dir)
		return Root{}, err
	}
	if err != nil {
		return Root{}, err
	}
	return Root{data, versionOf(data)}, nil
}

// versionOf returns the version of a root: no two roots have the same bytes, and an operator's
// edit makes a new version.
func versionOf(data []byte) Version { return Version(sumOf(data)[:32]) }

// SwapRoot implements Backend. The lock is held only while the file is read again and replaced by a
// rename: a process that is stopped meanwhile blocks all writers.
func (f *file) SwapRoot(ctx context.Context, old Version, root []byte) (Version, error) {
	v, err := await(ctx, f.writes, func(ctx context.Context) (Version, error) { return f.swapRoot(ctx, old, root) })
	return v, f.describe(err)
}

func (f *file) swapRoot(ctx context.Context, old Version, root []byte) (Version, error) {
	temp, err := atomicfile.WriteTemp(f.path(), root, 0o644, (*os.File).Sync)
	if err != nil {
		return "", err
	}
	defer os.Remove(temp) // after the rename there is none
	unlock, err := lock(ctx, f.path()+lockSuffix)
	if err != nil {
		return "", fmt.Errorf("lock: %w", err)
	}
	defer unlock()
	switch stored, err := f.readRoot(); {
	case err != nil:
		return "", err
	case stored.Version != old:
		return "", ErrConflict
	case ctx.Err() != nil:
		return "", ctx.Err() // its caller has given up
	}
	if err := os.Rename(temp, f.path()); err != nil {
		return "", err
	}
	return versionOf(root), atomicfile.SyncDir(f.dir)
}

// WatchRoot implements Backend. It watches the directory, because writers replace the file by a
// rename. Events do not cross network file systems.
func (f *file) WatchRoot(ctx context.Context, changed chan<- struct{}) {
	f.watchRoot(ctx, changed, (*fsnotify.Watcher).Add)
}

// watchRoot is WatchRoot with how a directory is added to a watcher. It does not wait for a file
// system that hangs.
func (f *file) watchRoot(ctx context.Context, changed chan<- struct{}, add func(*fsnotify.Watcher, string) error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return
	}
	added := make(chan error, 1)
	go func() { added <- add(w, f.dir) }()
	select {
	case err = <-added:
	case <-ctx.Done():
		go func() {
			<-added
			w.Close()
		}()
		return
	}
	defer w.Close()
	if err != nil {
		return
	}
	for {
		select {
		case e := <-w.Events:
			if e.Name == f.path() {
				wakeup.Send(changed)
			}
		case <-w.Errors: // events may have been lost, by an overflow for instance
			wakeup.Send(changed)
		case <-ctx.Done():
			return
		}
	}
}

// inFolder runs do with the path of a blob.
func inFolder[T any](ctx context.Context, f *file, folder, name string, do func(path string) (T, error)) (T, error) {
	path := filepath.Join(f.dir, folder, name)
	out, err := await(ctx, f.folders[folder], func(context.Context) (T, error) { return do(path) })
	if err != nil {
		return out, fmt.Errorf("blob %s: %w", path, err)
	}
	return out, nil
}

// write writes a blob, in a folder that may not exist yet.
func (f *file) write(ctx context.Context, folder, name string, do func(path string) error) error {
	_, err := inFolder(ctx, f, folder, name, func(path string) (struct{}, error) {
		err := os.Mkdir(filepath.Dir(path), 0o700)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = do(path)
		}
		return struct{}{}, err
	})
	return err
}

// CreateBlob implements Backend.
func (f *file) CreateBlob(ctx context.Context, folder, name string, data []byte) error {
	return f.write(ctx, folder, name, func(path string) error {
		temp, err := atomicfile.WriteTemp(path, data, 0o600, (*os.File).Sync)
		if err != nil {
			return err
		}
		defer os.Remove(temp)
		if err := os.Link(temp, path); err != nil {
			if errors.Is(err, fs.ErrExist) {
				err = ErrExists
			}
			return err
		}
		return atomicfile.SyncDir(filepath.Dir(path))
	})
}

// ReplaceBlob implements Backend.
func (f *file) ReplaceBlob(ctx context.Context, folder, name string, data []byte) error {
	return f.write(ctx, folder, name, func(path string) error { return atomicfile.WriteUnsynced(path, data, 0o600) })
}

// ReadBlob implements Backend.
func (f *file) ReadBlob(ctx context.Context, folder, name string) ([]byte, error) {
	return inFolder(ctx, f, folder, name, func(path string) ([]byte, error) {
		data, err := atomicfile.Read(path, maxBlobFile)
		if errors.Is(err, fs.ErrNotExist) {
			err = ErrNoBlob
		}
		return data, err
	})
}

// ListBlobs implements Backend. It removes the temporary files that interrupted writers left more
// than an hour ago, and leaves out files with names that blobs do not have.
func (f *file) ListBlobs(ctx context.Context, folder string) ([]string, error) {
	return inFolder(ctx, f, folder, "", func(path string) (names []string, err error) {
		entries, err := os.ReadDir(path)
		if errors.Is(err, fs.ErrNotExist) {
			_, err = os.Stat(f.dir)
			return nil, err
		}
		for _, e := range entries {
			if isBlobName(e.Name()) {
				names = append(names, e.Name())
			}
		}
		return names, errors.Join(err, atomicfile.RemoveStale(path, isBlobName))
	})
}

// isBlobName reports whether a file may be a blob, and no temporary file.
func isBlobName(name string) bool {
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == "" && !strings.Contains(name, ".tmp")
}

// RemoveBlob implements Backend.
func (f *file) RemoveBlob(ctx context.Context, folder, name string) error {
	_, err := inFolder(ctx, f, folder, name, func(path string) (struct{}, error) {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return struct{}{}, err
	})
	return err
}
