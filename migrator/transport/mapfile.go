//go:build unix

package transport

import (
	"errors"
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
func MapFiles(files []*os.File, sizes []int64, layout func(begin []int64) Layout) (_ *Memory, err error) {
	if len(files) == 1 {
		return MapFile(files[0], layout([]int64{0}), sizes[0])
	}
	closeAll := func() {
		for _, f := range files {
			f.Close()
		}
	}
	begin, total := make([]int64, len(files)), int64(0)
	for i, f := range files {
		if err := checkFile(f, sizes[i]); err != nil {
			closeAll()
			return nil, fmt.Errorf("handle %d: %w", i, err)
		}
		begin[i] = total
		total += (sizes[i] + pageBytes - 1) / pageBytes * pageBytes
	}
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(total), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		closeAll()
		return nil, os.NewSyscallError("mmap", err)
	}
	unmap := func() { _ = unix.MunmapPtr(at, uintptr(total)) } // cannot fail for what was mapped above
	for i, f := range files {
		if _, err := unix.MmapPtr(int(f.Fd()), 0, unsafe.Add(at, begin[i]), uintptr(sizes[i]), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED); err != nil {
			unmap()
			closeAll()
			return nil, os.NewSyscallError("mmap", err)
		}
	}
	closeAll()
	return &Memory{Layout: layout(begin), Bytes: unsafe.Slice((*byte)(at), total), Unmap: unmap}, nil
}

// checkFile returns why a file is no shared memory of so many bytes.
func checkFile(f *os.File, size int64) error {
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
	return nil
}

// MapFile maps the shared memory in a file, size bytes that a layout describes. It owns the file
// from now on, and closes it if it fails.
func MapFile(file *os.File, l Layout, size int64) (*Memory, error) {
	err := checkFile(file, size)
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
