package verbs

import (
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// memlockHint says what to do when memory cannot be locked.
const memlockHint = "registered memory is locked: raise RLIMIT_MEMLOCK (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit) or give the process CAP_IPC_LOCK"

// MemlockError says that so much memory may not be locked in this process.
type MemlockError struct{ Need, Limit uint64 }

func (e *MemlockError) Error() string {
	return fmt.Sprintf("%d bytes cannot be registered, RLIMIT_MEMLOCK is %d: %s", e.Need, e.Limit, memlockHint)
}

func symbolError(c call) error {
	return &device.SymbolError{Library: Soname, Symbol: calls[c]}
}
