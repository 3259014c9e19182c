//go:build unix

package transport

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageBytes is the size of a page, on systems with large ones.
const pageBytes = 64 << 10

// MapFiles maps the shared memory in files, of so many bytes each, as one memory, whose layout is returned by a function
// of the place at which each of them begins. It owns the files from now on, and closes them if it fails. A memory of several
// files has no File.
func MapFiles(files []*os.File, sizes []int64, layout func(begin []int64) Layout) (*Memory, error) {
	begin, total := make([]int64, len(files)), int64(0)
	for i, size := range sizes {
		begin[i] = (total + pageBytes - 1) / pageBytes * pageBytes
		total = begin[i] + size
	}
	closeFiles := func() {
		for _, f := range files {
			_ = f.Close() // cannot fail for shared memory
		}
	}
	if len(files) == 1 {
		// The kernel chooses a place that suits the file's pages, which may be large.
		at, err := mapAt(files[0], sizes[0], nil)
		if err != nil {
			closeFiles()
			return nil, fmt.Errorf("handle 0: %w", err)
		}
		return &Memory{
			Layout: layout(begin), Bytes: unsafe.Slice((*byte)(at), total), File: files[0],
			Unmap: func() { _ = unix.MunmapPtr(at, uintptr(total)); closeFiles() }, // cannot fail for what was mapped above
		}, nil
	}
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(total), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		closeFiles()
		return nil, os.NewSyscallError("mmap", err)
	}
	unmap := func() { _ = unix.MunmapPtr(at, uintptr(total)) } // cannot fail for what was mapped above
	defer closeFiles()
	for i, f := range files {
		if _, err := mapAt(f, sizes[i], unsafe.Add(at, begin[i])); err != nil {
			unmap()
			return nil, fmt.Errorf("handle %d: %w", i, err)
		}
	}
	return &Memory{Layout: layout(begin), Bytes: unsafe.Slice((*byte)(at), total), Unmap: unmap}, nil
}

// mapAt maps the shared memory in a file, of so many bytes, at a reserved address; at nil, anywhere. It returns the address.
func mapAt(f *os.File, size int64, at unsafe.Pointer) (unsafe.Pointer, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("a file of mode %v instead of shared memory", info.Mode())
	case info.Size() < size:
		// Access beyond its end would kill this process.
		return nil, fmt.Errorf("shared memory of %d bytes, less than the %d of its description", info.Size(), size)
	}
	flags := unix.MAP_SHARED
	if at != nil {
		flags |= unix.MAP_FIXED
	}
	at, err = unix.MmapPtr(int(f.Fd()), 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, flags)
	return at, os.NewSyscallError("mmap", err)
}
