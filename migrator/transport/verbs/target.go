package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/internal/pull"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/handshake"
	"github.com/cascadeinfer/cascade/policies"
)

var errExpired = fmt.Errorf("the grant has expired: %w", context.DeadlineExceeded)

// Open presents a ticket, and connects. See transport.Target.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	return pull.Open(t.Name(), offer, func() (*puller, error) { return t.open(ctx, receiver, offer) })
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	creds := insecure.NewCredentials()
	if t.config.Credentials != nil {
		creds = t.config.Credentials(offer.Source, offer.Address)
	} else if err := pull.CheckPlaintext(offer.Address); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &puller{t: t, done: make([]verbs.Completion, 2*depth)}
	defer func() {
		if err != nil {
			err = errors.Join(pull.Cause(ctx, err), p.give())
		}
	}()
	if p.memory, err = transport.HoldMemory(t.config.Pool); err != nil {
		return nil, err
	}
	if p.nic, err = t.take(); err != nil {
		return nil, err
	}
	p.pieces = min(p.nic.device.Limits.Pieces, maxPieces)
	p.work = make([]verbs.Work, max(min(verbs.Batch, p.nic.device.Limits.Requests/depth), 1))
	requests := depth * len(p.work)
	if p.region, err = p.nic.reach(p.memory); err != nil {
		return nil, err
	}
	if p.queue, err = p.nic.device.Queue(requests); err != nil {
		return nil, err
	}
	if p.pair, err = p.nic.device.Pair(p.queue, requests, 1, p.pieces); err != nil {
		return nil, err
	}
	if p.at, err = p.nic.place(); err != nil {
		return nil, err
	}
	if err := p.pair.Init(p.at.port.Number, 0); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.conn, err = grpc.NewClient("passthrough:///"+offer.Address, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithDisableServiceConfig(), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	if err := p.attach(ctx, handshake.Hello{Ticket: offer.Ticket, Receiver: receiver}); err != nil {
		return nil, err
	}
	p.Puller = pull.NewPuller(pull.Steps{
		Transport: t.Name(), Local: p.memory, Remote: p.remote, Copy: p.copyBlocks, Interrupt: p.interrupt,
		Release: func() error { return errors.Join(p.fence(), p.give()) },
	})
	return p, nil
}

// puller is one open move: a stream to the source's migrator, and a pair.
type puller struct {
	*pull.Puller
	t        *Transport
	memory   *transport.Memory
	nic      *nic
	at       place // of the nic
	region   *region
	queue    *verbs.Queue
	pair     *verbs.Pair
	pieces   int // of one READ
	conn     *grpc.ClientConn
	stream   grpc.ClientStream  // asks are sent by Pull alone
	replies  chan uint32        // slots that the source has packed
	hangUp   context.CancelFunc // ends the stream
	forget   func() bool        // the failure of the nic does not hang up any more
	left     chan struct{}      // closed when the stream has ended; nil before there is one
	remote   transport.Layout
	key      key
	deadline time.Time // of the grant, no later than the source has it

	lost atomic.Pointer[error] // why the stream has ended

	work      []verbs.Work // of memory without Go pointers, as C demands
	done      []verbs.Completion
	stretches []stretch  // of the pull's plan
	cursor    cursor     // in it
	posted    uint64     // batches of the pull
	ended     uint64     // and those of them that have come
	marks     [depth]int // parts that are whole after each batch under way
	bad       []int
	fenced    bool
}

// attach presents the ticket and the own end, and connects to the source's.
func (p *puller) attach(ctx context.Context, h handshake.Hello) error {
	own := p.at.end(p.nic.device, p.pair)
	hello, err := h.Append(nil)
	if err != nil {
		return err
	}
	streaming, cancel := context.WithCancel(context.Background())
	p.hangUp = cancel
	late := time.AfterFunc(pull.HelloTimeout, cancel)
	defer late.Stop()
	defer context.AfterFunc(ctx, cancel)()
	start := time.Now()
	stream, err := p.conn.NewStream(streaming, &service.Streams[0], attach)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(wrapperspb.Bytes(own.append(hello))); err != nil && !errors.Is(err, io.EOF) {
		return err // io.EOF: what the source has said is why
	}
	answer := &wrapperspb.BytesValue{}
	if err := stream.RecvMsg(answer); err != nil {
		return err
	}
	r := bytes.NewReader(answer.GetValue())
	size := int64(0)
	if p.remote, size, err = handshake.ReadWelcome(r); err != nil {
		return err
	}
	rest := answer.GetValue()[len(answer.GetValue())-r.Len():]
	if len(rest) != endSize+keySize {
		return fmt.Errorf("the source sent %d bytes behind its layout, want %d", len(rest), endSize+keySize)
	}
	theirs, err := parseEnd(rest[:endSize])
	if err != nil {
		return err
	}
	if err := p.remote.CheckCompatible(p.memory.Layout); err != nil {
		return err
	}
	if p.key, err = parseKey(rest[endSize:], size, p.memory.BlockBytes()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := own.path(p.nic, p.at, theirs)
	if err != nil {
		return err
	}
	if err := p.pair.Answer(path); err != nil {
		return err
	}
	if err := p.pair.Ask(path); err != nil {
		return err
	}
	p.deadline = start.Add(p.key.left)
	p.left, p.replies, p.stream = make(chan struct{}), make(chan uint32, p.key.slots), stream
	p.forget = context.AfterFunc(p.nic.broken, p.hangUp)
	go p.watch(stream)
	return nil
}

// watch hands on what the source has packed, and ends the connection when the stream
// ends, whatever the NIC would notice.
func (p *puller) watch(stream grpc.ClientStream) {
	defer close(p.left)
	err := p.hear(stream)
	err = fmt.Errorf("the source has ended the grant: %w", err)
	if failed := context.Cause(p.nic.broken); failed != nil {
		err = failed
	}
	p.lost.Store(&err)
	p.pair.Fail() // and what is under way ends; if it cannot, nobody waits for it
	p.queue.SetDeadline(time.Unix(1, 0))
}

// hear returns when the source has ended the stream, or says what it should not.
func (p *puller) hear(stream grpc.ClientStream) error {
	for m := new(wrapperspb.BytesValue); ; m.Reset() {
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		if len(m.GetValue()) != 4 {
			return errors.New("it speaks out of turn")
		}
		select {
		case p.replies <- binary.LittleEndian.Uint32(m.GetValue()):
		default:
			return errors.New("it packs what nobody asks for")
		}
	}
}

// fence ends the own end of the connection: after it the NIC writes nothing for it.
func (p *puller) fence() error {
	if p.fenced {
		return nil
	}
	p.hangUp()
	<-p.left // which does not use the pair any more
	p.fenced = true
	return p.pair.Close()
}

// interrupt makes a Pull in progress return.
func (p *puller) interrupt() {
	p.queue.SetDeadline(time.Unix(1, 0))
	p.hangUp() // ends a wait for the source
}

// give gives back what the puller has. The stream has ended, or there is none.
func (p *puller) give() error {
	if p.forget != nil {
		p.forget()
	}
	if p.hangUp != nil {
		p.hangUp()
	}
	if p.left != nil {
		<-p.left
	}
	var err error
	if p.conn != nil {
		err = p.conn.Close()
	}
	stuck := false
	if p.pair != nil {
		if e := p.pair.Close(); e != nil {
			err, stuck = errors.Join(err, e), true
		}
	}
	if p.queue != nil {
		err = errors.Join(err, p.queue.Close())
	}
	if stuck {
		// The NIC may write still: only the end of the registration is sure to end
		// that. It has failed for whoever else uses it, too.
		if e := p.nic.endRegion(p.region); e != nil {
			return errors.Join(err, e) // the memory is held for good
		}
	}
	if p.region != nil {
		err = errors.Join(err, p.nic.leave(p.region, p.t.config.Pool))
	}
	if p.nic != nil {
		err = errors.Join(err, p.t.give(p.nic))
	}
	if p.memory != nil {
		p.memory.Release()
	}
	return err
}
