package shm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/wire"
	"github.com/cascadeinfer/cascade/policies"
)

var errClosed = errors.New("the puller is closed")

// Open presents a ticket, and maps the source's pool. See transport.Target.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	p, err := t.open(ctx, receiver, offer)
	if err != nil {
		return nil, fmt.Errorf("shm transport: open %s: %w", offer.Address, err)
	}
	return p, nil
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	if offer.Transport != t.Name() {
		return nil, fmt.Errorf("an offer for transport %q", offer.Transport)
	}
	// The address comes from a peer: it must be no other socket of this user.
	if !filepath.IsAbs(offer.Address) || !strings.HasSuffix(offer.Address, suffix) || len(offer.Address) > maxPath {
		return nil, errors.New("not the path of a source's socket")
	}
	if err := isPrivate(filepath.Dir(offer.Address)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &puller{owner: t}
	defer func() {
		if err != nil {
			p.give()
		}
	}()
	if p.local, err = transport.Hold(t.config.Pool); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: helloTimeout}
	conn, err := dialer.DialContext(ctx, "unixpacket", offer.Address)
	if err != nil {
		return nil, err
	}
	p.conn = conn.(*net.UnixConn)
	if err := sameUser(p.conn); err != nil {
		return nil, err
	}
	var size int64
	var file *os.File
	err = p.during(ctx, helloTimeout, func() (err error) {
		p.remote, size, file, err = p.greet(wire.Hello{Ticket: offer.Ticket, Receiver: receiver})
		return err
	})
	if file != nil {
		defer file.Close()
	}
	if err != nil {
		return nil, err
	}
	if err := p.remote.Matches(p.local.Layout); err != nil {
		return nil, err
	}
	if p.mapping, err = t.mappings.open(file, size); err != nil {
		return nil, err
	}
	p.memory = transport.Memory{Layout: p.remote, Bytes: p.mapping.bytes}
	return p, nil
}

// puller is one open move: a connection and a mapping.
type puller struct {
	owner  *Transport
	conn   *net.UnixConn
	remote transport.Layout
	local  *transport.Memory
	// The source's pool, as mapped.
	mapping *mapping
	memory  transport.Memory

	closing atomic.Bool
	once    sync.Once

	mu     sync.Mutex // held by Pull, and by Close when it gives back
	checks uint64
	bad    []int
	over   error // why the puller is of no use any more
}

// greet presents the ticket and returns what the source sends: its layout, the
// size of its pool, and the pool.
func (p *puller) greet(h wire.Hello) (l transport.Layout, size int64, file *os.File, err error) {
	hello, err := h.Append(nil)
	if err != nil {
		return l, 0, nil, err
	}
	if _, err := p.conn.Write(hello); err != nil {
		return l, 0, nil, err
	}
	packet, rights := make([]byte, wire.MaxWelcome+1), make([]byte, unix.CmsgSpace(4))
	n, m, flags, _, err := p.conn.ReadMsgUnix(packet, rights)
	if err != nil {
		return l, 0, nil, err
	}
	files, err := received(rights[:m])
	if len(files) == 1 {
		file = files[0]
	} else {
		for _, f := range files {
			f.Close()
		}
	}
	if err != nil {
		return l, 0, file, err
	}
	l, size, err = wire.ReadWelcome(bytes.NewReader(packet[:n]))
	if err == nil && (file == nil || flags&unix.MSG_CTRUNC != 0) {
		err = fmt.Errorf("the source sent %d files, want 1", len(files))
	}
	return l, size, file, err
}

// received takes the descriptors out of a control message.
func received(rights []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "pool"))
		}
	}
	return files, nil
}

// during runs f, which talks to the source, and ends it with ctx or after d.
func (p *puller) during(ctx context.Context, d time.Duration, f func() error) error {
	if err := p.conn.SetDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { p.conn.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Pull copies out of the mapping. See transport.Puller.
func (p *puller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if p.over == nil {
		p.bad = p.bad[:0]
		p.over = transport.Guard(func() error { return p.copy(ctx, plan) })
	}
	if p.over != nil {
		return transport.Stats{}, fmt.Errorf("shm transport: pull: %w", p.over)
	}
	stats := transport.Stats{
		Blocks: len(plan.Src), Bytes: int64(len(plan.Src)) * p.local.BlockBytes(), Took: time.Since(start),
	}
	if len(p.bad) > 0 {
		return stats, &transport.CorruptError{Blocks: append([]int(nil), p.bad...)}
	}
	return stats, nil
}

func (p *puller) copy(ctx context.Context, plan transport.Plan) error {
	if err := plan.Fits(p.remote, p.local.Layout); err != nil {
		return err
	}
	unchecked, block, regions := int64(0), p.local.BlockBytes(), len(p.local.Regions)
	for i := range plan.Src {
		good := true
		for r := range regions {
			if p.closing.Load() {
				return errClosed
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			sum := transport.Copy(p.local.Part(plan.Dst[i], r), p.memory.Part(plan.Src[i], r), 0)
			good = good && sum == plan.Sums[i*regions+r]
		}
		if !good {
			p.bad = append(p.bad, i)
		}
		if unchecked += block; unchecked >= checkEvery {
			unchecked = 0
			if err := p.check(ctx); err != nil {
				return err
			}
		}
	}
	return p.check(ctx)
}

// check returns nil when the lease was in force at a moment after the call.
func (p *puller) check(ctx context.Context) error {
	if p.closing.Load() {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	p.checks++
	err := p.during(ctx, checkTimeout, func() error {
		var packet [checkSize + 1]byte
		binary.LittleEndian.PutUint64(packet[:], p.checks)
		if _, err := p.conn.Write(packet[:checkSize]); err != nil {
			return err
		}
		n, err := p.conn.Read(packet[:])
		if err != nil {
			return err
		}
		if n != checkSize || binary.LittleEndian.Uint64(packet[:]) != p.checks {
			return errors.New("it answers another check")
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("the source has ended the grant: %w", err)
	}
	return err
}

// Close ends the move. See transport.Puller.
func (p *puller) Close() error {
	p.once.Do(func() {
		p.closing.Store(true)
		p.conn.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over == nil {
			p.over = errClosed
		}
		p.give()
	})
	return nil
}

// give gives back what the puller has of the connection and both memories.
func (p *puller) give() {
	if p.conn != nil {
		p.conn.Close()
	}
	if p.mapping != nil {
		p.memory.Bytes = nil
		p.owner.mappings.release(p.mapping, time.Now())
	}
	if p.local != nil {
		p.local.Release()
	}
}
