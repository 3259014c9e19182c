package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// version is the version of the handover protocol; a process rejects another one.
//
//	1  2026-10  ask, listeners, ready, stopped
const version = 1

// Bounds of the protocol.
const (
	maxPacket    = 4 << 10 // bytes
	maxListeners = 8       // sockets in one message
	stepTimeout  = 5 * time.Second
	// readyTimeout is how long a new process may take from receiving the sockets to its first
	// Accept. The old process serves meanwhile.
	readyTimeout = time.Minute
	// stoppedTimeout is how long the old process may take from then to its last Accept.
	stoppedTimeout = 15 * time.Second
)

// packet is one step of the protocol: a JSON object in a packet of a
// SOCK_SEQPACKET socket. Sockets are sent with it in the order of Listeners.
type packet struct {
	Version   int      `json:"version"`
	Step      string   `json:"step"` // ask, listeners, ready, stopped, refused
	Process   int      `json:"process,omitempty"`
	Listeners []string `json:"listeners,omitempty"`
	Reason    string   `json:"reason,omitempty"` // set in the step "refused"
}

// send writes a packet with sockets, by their descriptors, within stepTimeout.
func send(conn *net.UnixConn, m packet, sockets ...int) error {
	m.Version = version
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(stepTimeout)); err != nil {
		return err
	}
	var rights []byte
	if len(sockets) > 0 {
		rights = unix.UnixRights(sockets...)
	}
	_, _, err = conn.WriteMsgUnix(body, rights, nil)
	return err
}

// receive reads the next packet, which must be of the given step, and its files,
// which the caller closes. Only "listeners" has files.
func receive(conn *net.UnixConn, step string, within time.Duration) (m packet, files []*os.File, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return m, nil, err
	}
	body, rights := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4*maxListeners))
	n, rn, flags, _, err := conn.ReadMsgUnix(body, rights)
	if err != nil {
		return m, nil, err
	}
	files, err = unixsocket.ParseFiles(rights[:rn], "socket")
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	switch {
	case err != nil:
		return m, files, err
	case n == 0:
		return m, files, io.EOF
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return m, files, errors.New("the packet is too long")
	}
	m, err = decode(body[:n], step)
	if err == nil && len(files) != len(m.Listeners) {
		err = fmt.Errorf("%d sockets came with %d names", len(files), len(m.Listeners))
	}
	return m, files, err
}

// decode parses a packet that must be of the given step.
func decode(body []byte, step string) (m packet, err error) {
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("not a handover packet: %w", err)
	}
	seen := map[string]bool{}
	for _, name := range m.Listeners {
		if seen[name] {
			return m, fmt.Errorf("socket %q is listed twice", name)
		}
		seen[name] = true
	}
	switch {
	case m.Version != version:
		return m, fmt.Errorf("the other process uses handover version %d, this one version %d; stop one before you start the other", m.Version, version)
	case m.Step == "refused":
		return m, fmt.Errorf("the other process refused: %s", m.Reason)
	case m.Step != step:
		return m, fmt.Errorf("the other process sent %q instead of %q", m.Step, step)
	case len(m.Listeners) > maxListeners || step != "listeners" && len(m.Listeners) > 0:
		return m, fmt.Errorf("too many sockets: %d with %q", len(m.Listeners), step)
	}
	return m, nil
}
