//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cachedir

import (
	"io/fs"
	"os"
	"syscall"
)

// locks is true: files can be locked.
const locks = true

// share takes a shared lock on a file and reports whether it succeeded: it fails while
// the file is locked exclusively. The lock lasts until the file is closed or this
// process ends.
func share(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// claim takes an exclusive lock on a file and reports whether it succeeded: it fails
// while the file is locked at all. The lock lasts until the file is closed or this
// process ends.
func claim(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// mine reports whether a file belongs to this user or to root.
func mine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || int(s.Uid) == os.Geteuid())
}
