package verbs

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// newPollableFile is a file that becomes readable as a descriptor of the library's does,
// which is made not to block.
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

// capIPCLock is the number of the capability that lifts RLIMIT_MEMLOCK.
const capIPCLock = 14

// checkMemlock says why so many bytes cannot be locked, as far as that can be known
// before.
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

// hasCapability reports whether the process has a capability; it does where that cannot be
// told, and the kernel decides.
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
