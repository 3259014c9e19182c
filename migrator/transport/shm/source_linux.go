package shm

import (
	"fmt"
	"os"

	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// suffix tells a source's socket from those of others in the directory.
const suffix = ".shm"

// welcome hands a lease's memory to its receiver.
func welcome(lease *ticket.Lease) ([]byte, *os.File, error) {
	f, err := readOnly(lease.Memory)
	return nil, f, err
}

// readOnly opens a memory's file once more, for reading only: the descriptor
// that is handed on cannot become a writable mapping.
func readOnly(m *transport.Memory) (*os.File, error) {
	if m.File == nil {
		return nil, errNoFile
	}
	raw, err := m.File.SyscallConn()
	if err != nil {
		return nil, err
	}
	var f *os.File
	var failed error
	if err := raw.Control(func(fd uintptr) { f, failed = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)) }); err != nil {
		return nil, err
	}
	return f, failed
}
