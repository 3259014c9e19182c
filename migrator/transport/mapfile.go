//go:build unix

package transport

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MapFile maps the shared memory in a file, size bytes that a layout describes. It owns the file
// from now on, and closes it if it fails.
func MapFile(file *os.File, l Layout, size int64) (*Memory, error) {
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("a file of mode %v instead of shared memory", info.Mode())
	case info.Size() < size:
		// Access beyond its end would kill this process.
		err = fmt.Errorf("shared memory of %d bytes, less than the %d of its description", info.Size(), size)
	}
	var bytes []byte
	if err == nil {
		bytes, err = unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		err = os.NewSyscallError("mmap", err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Memory{
		Layout: l, Bytes: bytes, File: file,
		Unmap: func() {
			// Neither can fail for what was mapped and opened above.
			_ = unix.Munmap(bytes)
			_ = file.Close()
		},
	}, nil
}
