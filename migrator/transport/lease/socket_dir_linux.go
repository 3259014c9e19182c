package lease

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// minStaleAge is the age below which a socket without a listener is kept: its owner may
// not listen yet.
const minStaleAge = 10 * time.Second

// removeStaleSockets removes the sockets of sources that were killed.
func removeStaleSockets(dir, suffix string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := e.Info()
		if err != nil || !strings.HasSuffix(path, suffix) || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < minStaleAge {
			continue
		}
		c, err := net.DialTimeout("unixpacket", path, HelloTimeout)
		if err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}
