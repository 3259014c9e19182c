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
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/policies"
)

var errExpired = fmt.Errorf("the grant has expired: %w", context.DeadlineExceeded)

// Open presents a ticket and connects. See transport.Transport.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	return lease.Open(t.Name(), offer, func() (*puller, error) { return t.open(ctx, receiver, offer) })
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	creds := insecure.NewCredentials()
	if t.config.Credentials != nil {
		creds = t.config.Credentials(offer.Source, offer.Address)
	} else if err := lease.CheckPlaintext(offer.Address); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p := &puller{connection: connection{t: t}, done: make([]verbs.Completion, 2*depth)}
	defer func() {
		if err != nil {
			err = errors.Join(lease.Cause(ctx, err), p.release())
		}
	}()
	if p.memory, err = transport.HoldMemory(t.config.Pool); err != nil {
		return nil, err
	}
	if err := p.acquireMemory(p.memory); err != nil {
		return nil, err
	}
	p.pieces = min(p.nic.device.Limits.ReadSegments, maxPieces)
	p.work = make([]verbs.Work, max(min(verbs.Batch, p.nic.device.Limits.Requests/depth), 1))
	if err := p.makePair(depth*len(p.work), p.pieces); err != nil {
		return nil, err
	}
	if err := p.pair.Init(p.state.port.Number, 0); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.conn, err = grpc.NewClient("passthrough:///"+offer.Address, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)), grpc.WithDisableServiceConfig(), grpc.WithNoProxy())
	if err != nil {
		return nil, err
	}
	if err := p.presentTicket(ctx, lease.Hello{Ticket: offer.Ticket, Receiver: receiver}); err != nil {
		return nil, err
	}
	p.Puller = lease.NewPuller(lease.Steps{
		Transport: t.Name(), Local: p.memory, Remote: p.remote, Copy: p.copyBlocks, Interrupt: p.interrupt,
		Release: func() error { return errors.Join(p.fence(), p.release()) },
	})
	return p, nil
}

// puller is one open pull: a stream to the source's migrator, and a queue pair.
type puller struct {
	*lease.Puller
	connection
	memory      *transport.Memory
	pieces      int // of one READ
	conn        *grpc.ClientConn
	stream      grpc.ClientStream  // only Pull sends on it
	replies     chan uint32        // buffers that the source has packed
	hangUp      context.CancelFunc // ends the stream
	stopHangUp  func() bool        // stops hangUp from being called when the NIC fails
	streamEnded chan struct{}      // closed when the stream has ended; nil before it is open
	remote      transport.Layout
	remoteMem   remoteMemory
	deadline    time.Time // of the grant, not later than at the source

	endErr atomic.Pointer[error] // why the stream has ended

	work   []verbs.Work // without Go pointers, as C requires
	done   []verbs.Completion
	runs   []blockRun // of the plan
	cursor cursor     // in the plan
	posted uint64     // batches posted
	ended  uint64     // batches completed
	marks  [depth]int // parts that are complete after each batch in flight
	bad    []int
	fenced bool
}

// presentTicket presents the ticket and the local endpoint, and connects to the source's.
func (p *puller) presentTicket(ctx context.Context, h lease.Hello) error {
	own := p.state.localEndpoint(p.nic.device, p.pair)
	hello, err := h.Append(nil)
	if err != nil {
		return err
	}
	streaming, cancel := context.WithCancel(context.Background())
	p.hangUp = cancel
	late := time.AfterFunc(lease.HelloTimeout, cancel)
	defer late.Stop()
	defer context.AfterFunc(ctx, cancel)()
	start := time.Now()
	stream, err := p.conn.NewStream(streaming, &service.Streams[0], attachMethod)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(wrapperspb.Bytes(own.append(hello))); err != nil && !errors.Is(err, io.EOF) {
		return err // after io.EOF, RecvMsg returns the reason
	}
	answer := &wrapperspb.BytesValue{}
	if err := stream.RecvMsg(answer); err != nil {
		return err
	}
	r := bytes.NewReader(answer.GetValue())
	size := int64(0)
	if p.remote, size, err = lease.ReadWelcome(r); err != nil {
		return err
	}
	rest := answer.GetValue()[len(answer.GetValue())-r.Len():]
	if len(rest) != endpointSize+remoteMemorySize {
		return fmt.Errorf("the source sent %d bytes after its layout, want %d", len(rest), endpointSize+remoteMemorySize)
	}
	theirs, err := parseEndpoint(rest[:endpointSize])
	if err != nil {
		return err
	}
	if err := p.remote.CheckCompatible(p.memory.Layout); err != nil {
		return err
	}
	if p.remoteMem, err = parseRemoteMemory(rest[endpointSize:], size, p.memory.BlockBytes()); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := own.pathTo(p.nic, p.state, theirs)
	if err != nil {
		return err
	}
	if err := p.pair.ReadyToReceive(path); err != nil {
		return err
	}
	if err := p.pair.ReadyToSend(path); err != nil {
		return err
	}
	p.deadline = start.Add(p.remoteMem.left)
	p.streamEnded, p.replies, p.stream = make(chan struct{}), make(chan uint32, p.remoteMem.buffers), stream
	p.stopHangUp = context.AfterFunc(p.nic.failed, p.hangUp)
	go p.watchStream(stream)
	return nil
}

// watchStream passes on the source's replies, and ends the connection when the stream
// ends, whatever the NIC would notice.
func (p *puller) watchStream(stream grpc.ClientStream) {
	defer close(p.streamEnded)
	err := p.receiveReplies(stream)
	err = fmt.Errorf("the source has ended the grant: %w", err)
	if failed := context.Cause(p.nic.failed); failed != nil {
		err = failed
	}
	p.endErr.Store(&err)
	p.pair.MoveToError() // ends what is in flight; if that fails, no one waits for it
	p.queue.SetDeadline(time.Unix(1, 0))
}

// receiveReplies returns when the source has ended the stream, or violates the protocol.
func (p *puller) receiveReplies(stream grpc.ClientStream) error {
	for m := new(wrapperspb.BytesValue); ; m.Reset() {
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		if len(m.GetValue()) != 4 {
			return errors.New("it sent a malformed reply")
		}
		select {
		case p.replies <- binary.LittleEndian.Uint32(m.GetValue()):
		default:
			return errors.New("it packed a buffer without being asked")
		}
	}
}

// fence ends the local end of the connection: after it the NIC writes nothing for it.
func (p *puller) fence() error {
	if p.fenced {
		return nil
	}
	p.hangUp()
	<-p.streamEnded // watchStream does not use the pair any more
	p.fenced = true
	return p.pair.Close()
}

// interrupt makes a Pull in progress return.
func (p *puller) interrupt() {
	p.queue.SetDeadline(time.Unix(1, 0))
	p.hangUp() // ends a wait for the source
}

// release gives back what the puller has acquired. The stream has ended, or was never
// open.
func (p *puller) release() error {
	if p.stopHangUp != nil {
		p.stopHangUp()
	}
	if p.hangUp != nil {
		p.hangUp()
	}
	if p.streamEnded != nil {
		<-p.streamEnded
	}
	var err error
	if p.conn != nil {
		err = p.conn.Close()
	}
	err = errors.Join(err, p.connection.release())
	if p.memory != nil {
		p.memory.Release()
	}
	return err
}
