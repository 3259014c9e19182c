package blocks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

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
	return mapSharedMemory(file, d)
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

// mapSharedMemory maps shared memory, and closes the file if that fails.
func mapSharedMemory(file *os.File, d Description) (*transport.Memory, error) {
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("the engine sent a file of mode %v instead of shared memory", info.Mode())
	case info.Size() < d.PoolBytes:
		// Access beyond its end would kill this process.
		err = fmt.Errorf("the engine's memory has %d bytes, less than the %d that it describes", info.Size(), d.PoolBytes)
	}
	var bytes []byte
	if err == nil {
		bytes, err = unix.Mmap(int(file.Fd()), 0, int(d.PoolBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		err = os.NewSyscallError("mmap", err)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &transport.Memory{
		Layout: d.Layout, Bytes: bytes, File: file,
		Unmap: func() {
			// Neither can fail for what was mapped and opened above.
			_ = unix.Munmap(bytes)
			_ = file.Close()
		},
	}, nil
}

// receiveDescriptor receives the one message that the engine sends, which has at least one
// byte, and its file descriptor, or nil.
func receiveDescriptor(ctx context.Context, path string) ([]byte, *os.File, error) {
	conn, err := dialEngine(ctx, path)
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
