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
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(total), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		closeFiles()
		return nil, os.NewSyscallError("mmap", err)
	}
	unmap := func() { _ = unix.MunmapPtr(at, uintptr(total)) } // cannot fail for what was mapped above
	for i, f := range files {
		if err := mapAt(f, sizes[i], unsafe.Add(at, begin[i])); err != nil {
			unmap()
			closeFiles()
			return nil, fmt.Errorf("handle %d: %w", i, err)
		}
	}
	m := &Memory{Layout: layout(begin), Bytes: unsafe.Slice((*byte)(at), total), Unmap: unmap}
	if len(files) > 1 {
		closeFiles()
	} else {
		m.File, m.Unmap = files[0], func() { unmap(); closeFiles() }
	}
	return m, nil
}

// mapAt maps the shared memory in a file, of so many bytes, at a reserved address.
func mapAt(f *os.File, size int64, at unsafe.Pointer) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("a file of mode %v instead of shared memory", info.Mode())
	case info.Size() < size:
		// Access beyond its end would kill this process.
		return fmt.Errorf("shared memory of %d bytes, less than the %d of its description", info.Size(), size)
	}
	_, err = unix.MmapPtr(int(f.Fd()), 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	return os.NewSyscallError("mmap", err)
}
