package kv

import (
	"os"

	"golang.org/x/sys/unix"
)

// sharedFile creates memory with a file descriptor and no name.
func sharedFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("cascade-kv", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "cascade-kv"), nil
}

// seal fixes the memory's size: a process that receives the descriptor could otherwise truncate
// it.
func seal(f *os.File) error {
	const size = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, size)
	return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
}
