package kv

import (
	"os"

	"golang.org/x/sys/unix"
)

// sharedFile is memory with a file descriptor and no name.
func sharedFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("cascade-kv", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "cascade-kv"), nil
}
