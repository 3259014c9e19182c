package host

import "syscall"

// reserve maps memory whose pages are allocated on first use; nil if it cannot. It
// disables huge pages: one of them is larger than the memory of most modules.
func reserve(bytes uint64) []byte {
	if bytes == 0 || bytes != uint64(int(bytes)) {
		return nil
	}
	b, err := syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		return nil
	}
	_ = syscall.Madvise(b, syscall.MADV_NOHUGEPAGE)
	return b
}

func unreserve(b []byte) { _ = syscall.Munmap(b) }
