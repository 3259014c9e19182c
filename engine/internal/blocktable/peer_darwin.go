package blocktable

import (
	"net"

	"golang.org/x/sys/unix"
)

// peerUser returns the user of a connection's peer.
func peerUser(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid = -1
	failed := raw.Control(func(fd uintptr) {
		var cred *unix.Xucred
		if cred, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	if failed != nil {
		return -1, failed
	}
	return uid, err
}
