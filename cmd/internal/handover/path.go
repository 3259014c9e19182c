package handover

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// maxPath is the longest path of a Unix socket, in bytes, with room for
// temporarySuffix.
const maxPath = 107 - len(temporarySuffix)

// temporarySuffix ends the name of a socket until it is renamed to its final path.
const temporarySuffix = ".new"

// lockRetry is the time between two attempts to take a lock.
const lockRetry = 20 * time.Millisecond

// RuntimeDir returns the default directory of the user's sockets:
// $XDG_RUNTIME_DIR/cascade, or cascade-<uid> in the directory for temporary files.
func RuntimeDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "cascade")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("cascade-%d", os.Geteuid()))
}

// Path returns the path of the Unix socket of the process that serves an address under a name, in
// dir, which it creates. Two processes share a path only if both the name and the address are the
// same.
func Path(dir, name, address string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		err = unixsocket.PrepareDir(dir)
	}
	if err != nil {
		return "", fmt.Errorf("runtime directory: %w", err)
	}
	key := url.PathEscape(name) + "@" + url.PathEscape(address)
	path := filepath.Join(dir, key+".sock")
	if len(path) > maxPath {
		sum := sha256.Sum256([]byte(key))
		path = filepath.Join(dir, fmt.Sprintf("%x.sock", sum[:8]))
	}
	if len(path) > maxPath {
		return "", fmt.Errorf("runtime directory: %s is too long for the path of a Unix socket; choose a shorter one", dir)
	}
	return path, nil
}

// lock waits until no other process holds the path's lock, and acquires it. Closing the file, or
// the end of the process, releases it.
func lock(ctx context.Context, path string) (*os.File, error) {
	every := time.NewTicker(lockRetry)
	defer every.Stop()
	for {
		f, err := tryLock(path)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another process is starting at %s: %w", path, context.Cause(ctx))
		case <-every.C:
		}
	}
}

// tryLock acquires the path's lock, or fails with EWOULDBLOCK.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
