package verbs

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// newPollableFile duplicates a descriptor of the library as a file whose reads can be
// waited for. It makes the descriptor non-blocking.
func newPollableFile(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), name), nil
}

// capIPCLock is the capability that overrides RLIMIT_MEMLOCK.
const capIPCLock = 14

// checkMemlock returns why so many bytes cannot be locked, as far as that is known in
// advance.
func checkMemlock(length uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || length <= limit.Cur {
		return nil
	}
	if hasCapability(capIPCLock) {
		return nil
	}
	return &MemlockError{Need: length, Limit: limit.Cur}
}

// hasCapability reports whether the process has a capability. It returns true if that is
// unknown; the kernel decides then.
func hasCapability(capability int) bool {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return true
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if bits, ok := strings.CutPrefix(s.Text(), "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(bits), 16, 64)
			return err != nil || set>>capability&1 == 1
		}
	}
	return true
}
