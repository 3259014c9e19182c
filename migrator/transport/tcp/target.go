package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/wire"
	"github.com/cascadeinfer/cascade/policies"
)

var errClosed = errors.New("the puller is closed")

// Open connects and presents a ticket. See transport.Target.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	p, err := t.open(ctx, receiver, offer)
	if err != nil {
		return nil, fmt.Errorf("tcp transport: open %s: %w", offer.Address, err)
	}
	return p, nil
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	if offer.Transport != t.Name() {
		return nil, fmt.Errorf("an offer for transport %q", offer.Transport)
	}
	if t.config.TLS == nil {
		if err := loopback(offer.Address); err != nil {
			return nil, err
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &puller{parts: make([][]byte, 0, readParts)}
	defer func() {
		if err != nil {
			p.give()
		}
	}()
	if p.local, err = transport.HoldDevice(t.config.Pool); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: helloTimeout, Control: congestion}
	dialer.SetMultipathTCP(false)
	if p.socket, err = dialer.DialContext(ctx, "tcp", offer.Address); err != nil {
		return nil, cause(ctx, err)
	}
	p.conn = p.socket
	hello, err := wire.Hello{Ticket: offer.Ticket, Receiver: receiver}.Append(nil)
	if err != nil {
		return nil, err
	}
	err = p.during(ctx, func() (err error) {
		if err := p.socket.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
			return err
		}
		if t.config.TLS != nil {
			conn := tls.Client(p.socket, t.config.ClientTLS(offer.Source, offer.Address))
			if err := conn.HandshakeContext(ctx); err != nil {
				return err
			}
			p.conn = conn
		}
		if _, err := p.conn.Write(hello); err != nil {
			return err
		}
		p.remote, _, err = wire.ReadWelcome(p.conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	p.reader = newReader(p.conn)
	return p, p.remote.Matches(p.local.Layout)
}

// cause is why a call ended: the context's end counts more than what it led to.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// puller is one open move: a connection.
type puller struct {
	socket net.Conn
	conn   net.Conn // socket, or TLS over it
	remote transport.Layout
	local  *transport.Memory

	closing atomic.Bool
	once    sync.Once

	mu     sync.Mutex // held by Pull, and by Close when it gives back
	reader reader
	ask    []byte
	head   [headSize]byte
	parts  [][]byte
	bad    []int
	pack   []byte // a list's blocks, on their way to a device
	over   error  // why the puller is of no use any more
}

// during runs f, which uses the connection, and breaks it off when ctx ends.
func (p *puller) during(ctx context.Context, f func() error) error {
	stop := context.AfterFunc(ctx, func() { p.socket.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() {
		return cause(ctx, err)
	}
	if err != nil {
		return cause(ctx, err)
	}
	return nil
}

// Pull asks and reads. See transport.Puller.
func (p *puller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	if p.over == nil {
		p.bad = p.bad[:0]
		p.over = p.during(ctx, func() error {
			return transport.Guard(func() error { return p.pull(ctx, plan) })
		})
	}
	if p.over != nil {
		return transport.Stats{}, fmt.Errorf("tcp transport: pull: %w", p.over)
	}
	stats := transport.Stats{
		Blocks: len(plan.Src), Bytes: int64(len(plan.Src)) * p.local.BlockBytes(), Took: time.Since(start),
	}
	if len(p.bad) > 0 {
		return stats, &transport.CorruptError{Blocks: append([]int(nil), p.bad...)}
	}
	return stats, nil
}

// pull asks for the plan in lists, one more of them than it waits for.
func (p *puller) pull(ctx context.Context, plan transport.Plan) error {
	if err := plan.Fits(p.remote, p.local.Layout); err != nil {
		return err
	}
	list := int(min(max(askBytes/p.local.BlockBytes(), 1), maxAsk))
	asked := 0
	for done := 0; ; {
		for asked == done || asked < len(plan.Src) && asked <= done+list {
			next := min(asked+list, len(plan.Src))
			if err := p.send(ctx, plan.Src[asked:next]); err != nil {
				return err
			}
			asked = next
			if asked == done { // an empty plan: its one list has no blocks
				break
			}
		}
		next := min(done+list, len(plan.Src))
		if err := p.answer(ctx, plan, done, next); err != nil {
			return err
		}
		if p.local.Device != nil && next > done {
			if err := p.local.Device.Scatter(p.local.Layout, plan.Dst[done:next], p.pack); err != nil {
				return err
			}
		}
		if done = next; done == len(plan.Src) {
			return nil
		}
	}
}

func (p *puller) send(ctx context.Context, blocks []uint32) error {
	p.ask = appendAsk(p.ask[:0], blocks)
	if err := p.reader.arm(ctx); err != nil {
		return err
	}
	_, err := p.conn.Write(p.ask)
	return err
}

// answer reads the answer for entries [from, to) of a plan.
func (p *puller) answer(ctx context.Context, plan transport.Plan, from, to int) error {
	if err := p.reader.full(ctx, p.head[:]); err != nil {
		return err
	}
	count, err := parseHead(p.head[:], kindAnswer)
	if err != nil {
		return err
	}
	if count != to-from {
		return fmt.Errorf("%d blocks were asked for, %d come", to-from, count)
	}
	// Parts are numbered through: part k is region k%regions of entry k/regions.
	// Those before done have come, those before next are in line.
	regions := len(p.local.Regions)
	running := p.remote.Sum == transport.CRC32 // other sums are of whole parts
	if p.local.Device != nil {
		p.pack = slices.Grow(p.pack[:0], (to-from)*int(p.local.BlockBytes()))[:(to-from)*int(p.local.BlockBytes())]
	}
	done, next, end := from*regions, from*regions, to*regions
	line, queued, sum := p.parts[:0], 0, uint32(0)
	for done < end {
		for next < end && queued < readBytes && len(line) < readParts {
			part := p.place(plan, from, next)
			line, queued, next = append(line, part), queued+len(part), next+1
		}
		if p.closing.Load() {
			return errClosed
		}
		n, err := p.reader.some(ctx, line)
		if err != nil {
			return err
		}
		queued -= n
		full := 0
		for ; n > 0 && n >= len(line[full]); full++ {
			if running {
				sum = crc32.Update(sum, crc32.IEEETable, line[full])
			} else {
				sum = p.remote.Sum.Of(p.place(plan, from, done+full))
			}
			n -= len(line[full])
			p.verify(plan, done+full, sum)
			sum = 0
		}
		if n > 0 && running {
			sum = crc32.Update(sum, crc32.IEEETable, line[full][:n])
		}
		if n > 0 {
			line[full] = line[full][n:]
		}
		done += full
		line = append(line[:0], line[full:]...)
	}
	return nil
}

// place is where a part's bytes go, of an answer from entry from on: to their place,
// or, for a device, to their place in pack.
func (p *puller) place(plan transport.Plan, from, part int) []byte {
	entry, r := part/len(p.local.Regions), part%len(p.local.Regions)
	if p.local.Device == nil {
		return p.local.Part(plan.Dst[entry], r)
	}
	at := int64(entry-from) * p.local.BlockBytes()
	for _, g := range p.local.Regions[:r] {
		at += g.Bytes
	}
	return p.pack[at:][:p.local.Regions[r].Bytes]
}

// verify notes the entry of a part that does not have its sum.
func (p *puller) verify(plan transport.Plan, part int, sum uint32) {
	entry := part / len(p.local.Regions)
	if sum != plan.Sums[part] && (len(p.bad) == 0 || p.bad[len(p.bad)-1] != entry) {
		p.bad = append(p.bad, entry)
	}
}

// Close ends the move. See transport.Puller.
func (p *puller) Close() error {
	p.once.Do(func() {
		p.closing.Store(true)
		p.socket.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.over == nil {
			p.over = errClosed
		}
		p.give()
	})
	return nil
}

// give gives back what the puller has.
func (p *puller) give() {
	if p.socket != nil {
		p.socket.Close()
	}
	if p.local != nil {
		p.local.Release()
	}
}
