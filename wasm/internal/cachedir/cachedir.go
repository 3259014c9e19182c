// Package cachedir manages a cache folder of machine code that several processes share:
// it bounds its size and refuses folders that other users can write to.
//
// An entry is a folder that the caller fills; this package does not interpret its
// contents. Invariants:
//
//  1. A folder that another user can write to is refused, because its contents are
//     executed.
//  2. An entry is not removed while any process has it open.
//  3. Only entries that this package made are removed.
package cachedir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	// lockName is the name of the file in each entry that is locked while the entry is
	// open. Its modification time is when the entry was opened last.
	lockName = "lock"
	// sort is the prefix of the names of the folders in the cache, one for each version
	// of the code that makes entries. keyLength is the length of the names of entries.
	sort      = "code-"
	keyLength = 64
	// attempts and pause bound how long Open and Evict wait for the lock of the cache.
	attempts = 5000
	pause    = 2 * time.Millisecond
)

// Limits bound the cache. With 0, only open entries are kept.
type Limits struct {
	Bytes   int64 // of all files
	Entries int
}

// Entry is an open entry. It must be closed once.
type Entry struct {
	path  string
	fresh bool
	lock  *os.File
}

// Open opens the entry of a key, 64 hexadecimal digits, for a version, and makes missing
// folders, dir included. The entry becomes the most recently used one.
func Open(dir, version, key string) (*Entry, error) {
	if len(key) != keyLength || strings.ContainsAny(key+version, `/\`) {
		return nil, fmt.Errorf("internal error: %q of %q is no entry of a cache", key, version)
	}
	path := filepath.Join(dir, sort+version, key)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if err := own(dir); err != nil {
		return nil, err
	}
	alone, err := hold(dir)
	if err != nil {
		return nil, err
	}
	defer alone.Close()
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	for _, p := range [...]string{filepath.Dir(path), path} {
		if err := own(p); err != nil {
			return nil, err
		}
	}
	bytes, err := size(path)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if !share(lock) {
		err = errors.New("locked although no process uses it")
	}
	if now := time.Now(); err == nil {
		err = os.Chtimes(lock.Name(), now, now)
	}
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("cache: %s: %w", lock.Name(), err)
	}
	return &Entry{path, bytes == 0, lock}, nil
}

// hold locks the cache folder: until the returned file is closed, no other caller can
// open or remove entries. It waits for callers that do; both take milliseconds.
func hold(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	for range attempts {
		if claim(f) {
			return f, nil
		}
		time.Sleep(pause)
	}
	f.Close()
	return nil, fmt.Errorf("cache %s: another process has kept it locked for %v: end it, or name another folder", dir, attempts*pause)
}

// own returns an error if users other than this one and root can write to a folder.
func own(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("cache: %w", err)
	case !info.IsDir():
		return fmt.Errorf("cache %s: it is not a folder", path)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("cache %s: others can write there (%v), and could run code here: chmod go-w it, or name another folder", path, info.Mode().Perm())
	case !mine(info):
		return fmt.Errorf("cache %s: it belongs to another user, who could run code here: chown it, or name another folder", path)
	}
	return nil
}

// Path returns the entry's folder.
func (e *Entry) Path() string { return e.path }

// Fresh reports whether the entry was empty when it was opened.
func (e *Entry) Fresh() bool { return e.fresh }

// Close closes the entry, which may then be removed.
func (e *Entry) Close() error { return e.lock.Close() }

// size returns the size of the files in a folder, without the lock file.
func size(path string) (bytes int64, err error) {
	err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == lockName {
			return gone(err)
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return gone(err)
	})
	return bytes, err
}

// gone returns err, or nil if a file does not exist: another process has removed it.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// kept is an existing entry.
type kept struct {
	path  string
	bytes int64
	used  time.Time
}

// Evict removes the least recently used entries, of all versions, until the rest is
// within the limits. Open entries stay, even if the limits are then exceeded. It returns
// the number of removed entries.
func Evict(dir string, l Limits) (removed int, err error) {
	alone, err := hold(dir)
	if err != nil {
		return 0, err
	}
	defer alone.Close()
	list, total, err := list(dir)
	if err != nil {
		return 0, err
	}
	slices.SortFunc(list, func(a, b kept) int { return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path)) })
	n := len(list)
	for _, e := range list {
		if n <= l.Entries && total <= l.Bytes {
			return removed, nil
		}
		ok, err := remove(e.path)
		if err != nil {
			return removed, err
		}
		if ok {
			n--
			removed++
			total -= e.bytes
		}
	}
	return removed, nil
}

// list returns the entries and their total size.
func list(dir string) (list []kept, total int64, err error) {
	paths, err := filepath.Glob(filepath.Join(escape(dir), sort+"*", strings.Repeat("[0-9a-f]", keyLength)))
	if err != nil {
		return nil, 0, fmt.Errorf("cache: %w", err)
	}
	for _, path := range paths {
		info, err := os.Stat(filepath.Join(path, lockName))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not made by this package
		}
		if err != nil {
			return nil, 0, fmt.Errorf("cache: %w", err)
		}
		bytes, err := size(path)
		if err != nil {
			return nil, 0, fmt.Errorf("cache: %w", err)
		}
		list = append(list, kept{path, bytes, info.ModTime()})
		total += bytes
	}
	return list, total, nil
}

// escape escapes the characters that have a meaning in patterns.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// remove removes an entry unless it is open.
func remove(path string) (bool, error) {
	if !locks {
		return false, nil
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
	if err != nil {
		return false, fmt.Errorf("cache: %w", err)
	}
	defer lock.Close()
	if !claim(lock) {
		return false, nil
	}
	if err := os.RemoveAll(path); err != nil {
		return false, fmt.Errorf("cache: %w", err)
	}
	os.Remove(filepath.Dir(path)) // fails unless this was the last entry of its version
	return true, nil
}
