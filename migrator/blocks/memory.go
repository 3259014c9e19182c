package blocks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"golang.org/x/sys/unix"
)

// receive fetches the memory of a pool, until ctx is done, and maps it. The caller closes it.
func receive(ctx context.Context, path string, d Description) (*transport.Memory, error) {
	file, err := fetch(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("the engine's memory: %s: %w", path, err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("what the engine sent is no memory but a file of mode %v", info.Mode())
	case info.Size() < d.PoolBytes:
		// Bytes behind its end would kill the process that touches them.
		err = fmt.Errorf("the engine's memory has %d bytes, and not the %d that it describes", info.Size(), d.PoolBytes)
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
			// Neither can fail for what was mapped and opened above, and nobody is
			// left who could be told.
			_ = unix.Munmap(bytes)
			_ = file.Close()
		},
	}, nil
}

// fetch receives the one file descriptor that the engine sends.
func fetch(ctx context.Context, path string) (*os.File, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	const most = 4 // descriptors that are taken, to be closed
	b, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4*most))
	n, rightsLen, _, _, err := conn.(*net.UnixConn).ReadMsgUnix(b, rights)
	if err != nil {
		return nil, err
	}
	fds, err := descriptors(rights[:rightsLen])
	if err == nil && (n != 1 || len(fds) != 1) {
		err = fmt.Errorf("the engine sent %d bytes and %d file descriptors, and not one of each", n, len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "engine-pool"), nil
}

// descriptors are all file descriptors of a control message, also with an error.
func descriptors(rights []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	for i := range messages {
		more, bad := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, more...), errors.Join(err, bad)
	}
	return fds, err
}
