package host

import (
	"runtime"
	"syscall"
	"time"
)

// threadTimeOf calls f and returns the processor time that its thread used.
func threadTimeOf(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	return threadTime() - before
}

// threadTime returns the processor time that this thread has used, 0 if it is unknown.
func threadTime() time.Duration {
	const thread = 1 // RUSAGE_THREAD
	var u syscall.Rusage
	if syscall.Getrusage(thread, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
