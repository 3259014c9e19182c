package testkit

import (
	"runtime"
	"syscall"
	"testing"
)

// OtherUser is a user as whom no test runs.
const OtherUser = 65534

// RunAs runs f on a thread that acts as another user, to whom its sockets and files belong.
// Its error fails the test; without root the test is skipped.
func RunAs(t testing.TB, uid int, f func() error) {
	t.Helper()
	SkipUnlessRoot(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it: the thread ends with the goroutine
		id := uintptr(uid)
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, id, id, id)
		if errno != 0 {
			done <- errno
			return
		}
		done <- f()
	}()
	NoError(t, <-done)
}
