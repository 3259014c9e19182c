//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package cachedir

import (
	"io/fs"
	"os"
	"syscall"
)

// locks: files can be locked.
const locks = true

// share reports whether nobody claims a file; if so, nobody can until it is closed,
// or this process ends.
func share(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
}

// claim reports whether nobody shares or claims a file; if so, nobody can until it
// is closed, or this process ends.
func claim(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}

// mine reports whether a file is this user's, or root's.
func mine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || int(s.Uid) == os.Geteuid())
}
