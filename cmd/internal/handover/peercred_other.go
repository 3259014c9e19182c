//go:build !linux

package handover

import (
	"errors"
	"net"
)

// supported reports whether this system supports handover.
const supported = false

func checkPeer(*net.UnixConn) error { return errors.ErrUnsupported }
