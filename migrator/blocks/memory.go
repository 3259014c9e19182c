package blocks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// inDevice is the first byte of the engine's message when its pool is in device memory; a
// handle of at most maxHandle bytes follows.
const (
	inDevice  = 'g'
	maxHandle = 256
)

// receiveMemory receives the memory of a pool, until ctx ends, and maps it. The caller closes it.
func (c *Client) receiveMemory(ctx context.Context, path string, d Description) (*transport.Memory, error) {
	message, file, err := receiveDescriptor(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("the engine's memory: %s: %w", path, err)
	}
	if len(message) > 1 {
		return c.mapDeviceMemory(message[1:], file, d)
	}
	m, err := transport.MapFile(file, d.Layout, d.PoolBytes)
	if err != nil {
		return nil, fmt.Errorf("the engine's memory: %w", err)
	}
	return m, nil
}

// mapDeviceMemory maps device memory with Config.Device.
func (c *Client) mapDeviceMemory(handle []byte, file *os.File, d Description) (*transport.Memory, error) {
	if c.device == nil {
		err := errors.New("the engine's memory is on a device, but this migrator has no device configured")
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return nil, err
	}
	m, err := c.device(handle, file, d.Layout)
	if err != nil {
		return nil, fmt.Errorf("the engine's memory is on a device: %w", err)
	}
	if m.Unmap == nil {
		m.Unmap = func() {}
	}
	return m, nil
}

// receiveDescriptor receives the one message that the engine sends, which has at least one
// byte, and its file descriptor, or nil.
func receiveDescriptor(ctx context.Context, path string) ([]byte, *os.File, error) {
	conn, err := unixsocket.Dial(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	const most = 4 // received descriptors, to close the excess ones
	b, rights := make([]byte, 1+maxHandle), make([]byte, unix.CmsgSpace(4*most))
	n, rightsLen, _, _, err := conn.ReadMsgUnix(b, rights)
	if err != nil {
		return nil, nil, err
	}
	fds, err := parseDescriptors(rights[:rightsLen])
	switch device := n > 1 && b[0] == inDevice; {
	case err != nil:
	case device && len(fds) > 1:
		err = fmt.Errorf("the engine sent %d file descriptors with device memory, at most one is allowed", len(fds))
	case !device && (n != 1 || len(fds) != 1):
		err = fmt.Errorf("the engine sent %d bytes and %d file descriptors, want one of each", n, len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return nil, nil, err
	}
	if len(fds) == 0 {
		return b[:n], nil, nil
	}
	return b[:n], os.NewFile(uintptr(fds[0]), "engine-pool"), nil
}

// parseDescriptors returns all file descriptors of a control message, even with an error.
func parseDescriptors(rights []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	for i := range messages {
		more, bad := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, more...), errors.Join(err, bad)
	}
	return fds, err
}
