package tcp

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// newReadv returns readv for a connection, which package net does not offer: with it
// small regions cost as few system calls as large ones. It returns nil if the connection
// has no descriptor.
func newReadv(conn *net.TCPConn) func(parts [][]byte) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	var (
		vector [readParts]unix.Iovec
		used   int
		n      int
		failed syscall.Errno
	)
	try := func(fd uintptr) bool {
		for {
			got, _, errno := unix.Syscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&vector[0])), uintptr(used))
			if errno == unix.EINTR {
				continue
			}
			n, failed = int(got), errno
			return errno != unix.EAGAIN
		}
	}
	return func(parts [][]byte) (int, error) {
		used = 0
		for room := readBytes; room > 0 && used < len(parts) && used < readParts; used++ {
			part := parts[used]
			vector[used].Base = unsafe.SliceData(part)
			vector[used].SetLen(min(len(part), room))
			room -= min(len(part), room)
		}
		err := raw.Read(try)
		clear(vector[:used]) // must not keep memory alive
		switch {
		case err != nil:
			return 0, err
		case failed != 0:
			return 0, failed
		case n == 0:
			return 0, io.ErrUnexpectedEOF
		}
		return n, nil
	}
}
