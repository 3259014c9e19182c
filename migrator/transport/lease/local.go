package lease

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

const (
	maxPath      = 100              // bytes of a socket's path; the kernel accepts 107
	nameLength   = 20               // of the socket's name in its directory, with the slash
	checkTimeout = 5 * time.Second  // for a source to answer a check
	checkSize    = 8                // bytes of a check
	minStaleAge  = 10 * time.Second // below it a socket without a listener is kept: its owner may not listen yet

	// MaxExtra bounds the bytes that a transport appends to a welcome.
	MaxExtra = 1024
	// IdleTimeout is how long a receiver keeps a mapping that it does not use.
	IdleTimeout = 30 * time.Second
)

// LocalConfig configures a transport between processes of one host.
type LocalConfig struct {
	// Dir is the directory of the sockets of this host's sources: an absolute path of
	// at most 80 bytes, created with mode 0700 if missing. Sources of one user may
	// share it. Required.
	Dir string
	// Pool has the local engine's memory, to which a source gives receivers access. Required.
	Pool transport.Pool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

// Local is what transports between processes of one host have in common: the socket of a source, at which
// receivers present their tickets. A transport embeds it. Elsewhere than on Linux it carries nothing: its Probe fails.
type Local struct {
	Source
	// Welcome returns what a receiver needs to reach the memory of a lease: bytes of the
	// transport's own, at most MaxExtra, and a descriptor or nil, which is closed after
	// it was sent.
	Welcome func(*Lease) (extra []byte, f *os.File, err error)
	// DropIdle drops what has been unused since before. It is called regularly while Run runs, with the
	// time IdleTimeout ago, and with the present when it ends.
	DropIdle func(before time.Time)

	dir, suffix string
}

// Init sets the name and the configuration of the transport. The name is the suffix of its sockets, too, which
// distinguishes them from others in the directory.
func (t *Local) Init(name string, c LocalConfig) error {
	if c.Pool == nil {
		return fmt.Errorf("%s transport: Pool is required", name)
	}
	if !filepath.IsAbs(c.Dir) || len(c.Dir)+nameLength > maxPath {
		return fmt.Errorf("%s transport: Dir %q must be an absolute path of at most %d bytes", name, c.Dir, maxPath-nameLength)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	t.Transport, t.Pool, t.Logger = name, c.Pool, c.Logger
	t.dir, t.suffix = filepath.Clean(c.Dir), "."+name
	return nil
}

// CanReach reports whether both ends are on the same host.
func (t *Local) CanReach(from, to string) bool { return from == to && from != "" }

// ProbeWith creates the directory and checks the engine's memory by checkMemory.
func (t *Local) ProbeWith(checkMemory func() error) error {
	err := errors.New("it requires Linux; use tcp")
	if runtime.GOOS == "linux" {
		err = unixsocket.PrepareDir(t.dir)
	}
	if err == nil {
		err = checkMemory()
	}
	if err != nil {
		return fmt.Errorf("%s transport: %w", t.Transport, err)
	}
	return nil
}

// Run serves receivers until ctx ends, and returns after the last session.
func (t *Local) Run(ctx context.Context) error {
	if runtime.GOOS != "linux" {
		<-ctx.Done()
		return nil
	}
	l, err := t.listen()
	if err != nil {
		return fmt.Errorf("%s transport: %w", t.Transport, err)
	}
	t.Start(l.Addr().String)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { Serve(ctx, l, t.Transport, t.Logger, t.serveReceiver) })
	tick := time.NewTicker(IdleTimeout / 3)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			t.DropIdle(now.Add(-IdleTimeout))
		case <-ctx.Done():
			t.Stop()
			t.DropIdle(time.Now())
			return nil
		}
	}
}

// listen makes the socket.
func (t *Local) listen() (*net.UnixListener, error) {
	if err := unixsocket.PrepareDir(t.dir); err != nil {
		return nil, err
	}
	t.removeStaleSockets()
	name := make([]byte, 6)
	rand.Read(name) // never fails
	return net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(t.dir, hex.EncodeToString(name)+t.suffix), Net: "unixpacket"})
}

// removeStaleSockets removes the sockets of sources that were killed.
func (t *Local) removeStaleSockets() {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		path := filepath.Join(t.dir, e.Name())
		info, err := e.Info()
		if err != nil || !strings.HasSuffix(path, t.suffix) || info.Mode().Type() != os.ModeSocket || time.Since(info.ModTime()) < minStaleAge {
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

// serveReceiver serves one receiver until its connection or its lease ends.
func (t *Local) serveReceiver(ctx context.Context, c net.Conn, admit func() error) error {
	conn := c.(*net.UnixConn)
	if err := unixsocket.CheckPeer(conn); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(HelloTimeout)); err != nil {
		return err
	}
	packet := make([]byte, MaxHello+1)
	n, err := conn.Read(packet)
	if err != nil {
		return err
	}
	lease, err := t.Accept(bytes.NewReader(packet[:n]), nil, admit, refuseOn(conn))
	if err != nil {
		return err
	}
	defer lease.End()
	defer lease.CloseWhenDone(conn)()

	if err := t.sendWelcome(conn, lease); err != nil {
		return err
	}
	if err := conn.SetDeadline(lease.Deadline); err != nil {
		return err
	}
	for {
		n, err := conn.Read(packet)
		if err != nil || n != checkSize {
			return err
		}
		if !lease.Enter() {
			return nil
		}
		_, err = conn.Write(packet[:n])
		lease.Leave()
		if err != nil {
			return err
		}
	}
}

// sendWelcome sends what a receiver needs to reach the memory of a lease.
func (t *Local) sendWelcome(conn *net.UnixConn, lease *Lease) error {
	m := lease.Memory
	packet, err := AppendWelcome(nil, m.Layout, m.Size())
	if err != nil {
		return err
	}
	extra, f, err := t.Welcome(lease)
	if err != nil {
		return err
	}
	var rights []byte
	if f != nil {
		defer f.Close()
		rights = unix.UnixRights(int(f.Fd()))
	}
	if !lease.Enter() {
		return nil
	}
	defer lease.Leave()
	_, _, err = conn.WriteMsgUnix(append(packet, extra...), rights, nil)
	return err
}
