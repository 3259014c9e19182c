//go:build unix && !linux && !darwin

package blocktable

import (
	"errors"
	"net"
)

// peerUser fails: a client whose user is unknown is rejected.
func peerUser(*net.UnixConn) (uid int, err error) {
	return -1, errors.New("this system does not report the user of a Unix socket's peer")
}
