package handover

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// supported says that this system has what a hand-over needs.
const supported = true

// checkPeer wants the process at the other end to be one of the own user.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var inner error
	if err := raw.Control(func(fd uintptr) {
		cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if inner != nil {
		return fmt.Errorf("credentials of the other process: %w", inner)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("the other process, %d, belongs to user %d; sockets are handed over to user %d only", cred.Pid, cred.Uid, os.Geteuid())
	}
	return nil
}
