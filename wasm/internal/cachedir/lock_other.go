//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package cachedir

import (
	"io/fs"
	"os"
)

// locks is false: files cannot be locked. Nothing is removed then, because it could be
// in use: the user must bound the size of the cache.
const locks = false

func share(*os.File) bool { return true }

func claim(*os.File) bool { return true }

// mine does not check the owner: that is left to the operating system.
func mine(fs.FileInfo) bool { return true }
