package headroom

import (
	"errors"
	"math"
	"os"
	"path"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
)

// Limits are what a process may use; 0 stands for no limit.
type Limits struct {
	Descriptors int
	Memory      int64 // bytes
}

// goMemory is the part of a container's memory, in percent, that the Go runtime may take:
// the rest is for thread stacks, mapped files and what C libraries allocate.
const goMemory = 90

// Read returns the limits of this process. Unless GOMEMLIMIT is set, it makes the Go
// runtime keep the limit of the container (control groups, version 2).
func Read() Limits {
	var l Limits
	var n syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &n); err == nil && n.Cur < math.MaxInt32 {
		l.Descriptors = int(n.Cur)
	}
	if openDescriptors() == 0 {
		l.Descriptors = 0 // they cannot be counted here
	}
	if l.Memory = debug.SetMemoryLimit(-1); l.Memory == math.MaxInt64 {
		l.Memory = containerMemory("/sys/fs/cgroup", readText("/proc/self/cgroup")) / 100 * goMemory
		if l.Memory > 0 {
			debug.SetMemoryLimit(l.Memory)
		}
	}
	return l
}

// containerMemory returns the smallest memory limit of the group that membership names
// and of the groups above it; 0 for none. root is where the groups are mounted.
func containerMemory(root, membership string) (limit int64) {
	_, group, ok := strings.Cut(membership, "0::")
	if !ok {
		return 0
	}
	group, _, _ = strings.Cut(group, "\n")
	for dir := path.Join("/", group); ; dir = path.Dir(dir) {
		n, err := strconv.ParseInt(strings.TrimSpace(readText(path.Join(root, dir, "memory.max"))), 10, 64)
		if err == nil && n > 0 && (limit == 0 || n < limit) { // "max" stands for none
			limit = n
		}
		if dir == "/" {
			return limit
		}
	}
}

// readText returns the text of a small file of the kernel; "" if it cannot be read.
func readText(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

const ownDescriptors = "/proc/self/fd"

// openDescriptors returns how many descriptors are open; 0 if they cannot be counted.
func openDescriptors() int {
	// Since Linux 6.2 the size of the directory is their number.
	if info, err := os.Stat(ownDescriptors); err == nil && info.Size() > 0 {
		return int(info.Size())
	}
	d, err := os.Open(ownDescriptors)
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return math.MaxInt32
	}
	if err != nil {
		return 0
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0
	}
	return len(names) - 1 // without d
}

// liveMemory returns the bytes of live objects and goroutine stacks.
func liveMemory() int64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
}
