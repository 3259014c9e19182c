package handover

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// supported reports whether this system supports handover.
const supported = true

// checkPeer checks that the process at the other end belongs to the same user.
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
		return fmt.Errorf("process %d belongs to user %d; sockets are handed over to processes of user %d only", cred.Pid, cred.Uid, os.Geteuid())
	}
	return nil
}
