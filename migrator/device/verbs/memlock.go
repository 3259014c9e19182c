package verbs

import (
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// memlockHint says what an operator can do if memory cannot be locked.
const memlockHint = "registered memory is locked: raise RLIMIT_MEMLOCK (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit) or give the process CAP_IPC_LOCK"

// MemlockError is the error of a registration that exceeds the limit of locked memory.
type MemlockError struct{ Need, Limit uint64 }

func (e *MemlockError) Error() string {
	return fmt.Sprintf("register %d bytes: RLIMIT_MEMLOCK is %d: %s", e.Need, e.Limit, memlockHint)
}

func symbolError(c call) error {
	return &device.SymbolError{Library: Soname, Symbol: symbol(c)}
}
