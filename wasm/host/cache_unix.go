//go:build unix

package host

import (
	"io/fs"
	"os"
	"syscall"
)

// mine reports whether a file belongs to this user or to root.
func mine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && (s.Uid == 0 || int(s.Uid) == os.Geteuid())
}
