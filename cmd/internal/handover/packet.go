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
)

// version is that of the conversation below; a process refuses another one's.
//
//	1  2026-10  ask, doors, ready, left
const version = 1

// Bounds of the conversation.
const (
	maxPacket    = 4 << 10 // bytes
	maxListeners = 8       // sockets in one message
	stepTimeout  = 5 * time.Second
	// readyTimeout is how long a new process may take from the sockets to its
	// first Accept; the old one serves meanwhile.
	readyTimeout = time.Minute
	// stoppedTimeout is how long the old one may take from there to its last.
	stoppedTimeout = 15 * time.Second
)

// packet is one packet of the conversation. Each is a JSON object in a packet
// of a SOCK_SEQPACKET socket; the sockets travel beside Doors, in that order.
type packet struct {
	Version   int      `json:"version"`
	Step      string   `json:"step"` // ask, doors, ready, left, refused
	Process   int      `json:"process,omitempty"`
	Listeners []string `json:"doors,omitempty"`
	Reason    string   `json:"why,omitempty"` // of refused
}

// send writes a message with files within a step's time.
func send(conn *net.UnixConn, m packet, files ...*os.File) error {
	m.Version = version
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := conn.SetWriteDeadline(time.Now().Add(stepTimeout)); err != nil {
		return err
	}
	var fds []int
	// The descriptors are used inside Control, so that the files keep their mode:
	// it is that of the socket, which other descriptors share.
	var control func(i int) error
	control = func(i int) error {
		if i < len(files) {
			raw, err := files[i].SyscallConn()
			if err != nil {
				return err
			}
			var inner error
			if err := raw.Control(func(fd uintptr) {
				fds = append(fds, int(fd))
				inner = control(i + 1)
			}); err != nil {
				return err
			}
			return inner
		}
		var rights []byte
		if len(fds) > 0 {
			rights = unix.UnixRights(fds...)
		}
		_, _, err := conn.WriteMsgUnix(body, rights, nil)
		return err
	}
	return control(0)
}

// receive reads the next message and the files beside it, which are the
// caller's. It wants the step, and files beside "doors" only.
func receive(conn *net.UnixConn, step string, within time.Duration) (m packet, files []*os.File, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return m, nil, err
	}
	body, rights := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4*maxListeners))
	n, rn, flags, _, err := conn.ReadMsgUnix(body, rights)
	if err != nil {
		return m, nil, err
	}
	files, err = parseFiles(rights[:rn])
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
		return m, files, errors.New("the message is too long")
	}
	m, err = decode(body[:n], step)
	if err == nil && len(files) != len(m.Listeners) {
		err = fmt.Errorf("%d sockets came under %d names", len(files), len(m.Listeners))
	}
	return m, files, err
}

// decode reads a message that must be of that step.
func decode(body []byte, step string) (m packet, err error) {
	if err := json.Unmarshal(body, &m); err != nil {
		return m, fmt.Errorf("no message of a hand-over: %w", err)
	}
	seen := map[string]bool{}
	for _, name := range m.Listeners {
		if seen[name] {
			return m, fmt.Errorf("the socket %q is there twice", name)
		}
		seen[name] = true
	}
	switch {
	case m.Version != version:
		return m, fmt.Errorf("the other process hands over by version %d, this one by version %d; stop one before you start the other", m.Version, version)
	case m.Step == "refused":
		return m, fmt.Errorf("the other process refuses: %s", m.Reason)
	case m.Step != step:
		return m, fmt.Errorf("the other process says %q where %q is due", m.Step, step)
	case len(m.Listeners) > maxListeners || step != "doors" && len(m.Listeners) > 0:
		return m, fmt.Errorf("%d sockets with %q are too many", len(m.Listeners), step)
	}
	return m, nil
}

// parseFiles turns control messages into files.
func parseFiles(rights []byte) (files []*os.File, err error) {
	if len(rights) == 0 {
		return nil, nil
	}
	all, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		fds, err := unix.ParseUnixRights(&c)
		if err != nil {
			continue // other things than files
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "socket"))
		}
	}
	return files, nil
}
