package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// Path is the prefix of the paths of the transport's gRPC requests.
const Path = "/cascade.migrator.v1.Verbs/"

// attachMethod is the only method.
const attachMethod = Path + "Attach"

// maxAttach and maxAnswer bound messages in bytes.
const (
	maxAttach = lease.MaxHello + endpointSize + 64
	maxAnswer = lease.MaxWelcome + endpointSize + remoteMemorySize + 64
)

// service describes the method: a stream of bytes in both directions.
var service = grpc.ServiceDesc{
	ServiceName: "cascade.migrator.v1.Verbs",
	HandlerType: (*receiverServer)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Attach", ServerStreams: true, ClientStreams: true,
		Handler: func(srv any, s grpc.ServerStream) error { return srv.(receiverServer).serveReceiver(s) },
	}},
}

type receiverServer interface{ serveReceiver(grpc.ServerStream) error }

// serveReceiver serves one receiver. A gRPC handler cannot interrupt its own Recv, so a
// goroutine reads the stream and ends soon after.
func (t *Transport) serveReceiver(stream grpc.ServerStream) error {
	t.mu.Lock()
	if t.ctx == nil {
		t.mu.Unlock()
		return status.Error(codes.Unavailable, "the source does not run")
	}
	t.wg.Add(1)
	run := t.ctx
	said, gone := make(chan []byte), make(chan struct{})
	t.wg.Go(func() {
		defer close(gone)
		for {
			m := &wrapperspb.BytesValue{}
			if stream.RecvMsg(m) != nil {
				return
			}
			select {
			case said <- m.GetValue():
			case <-stream.Context().Done():
				return
			}
		}
	})
	t.mu.Unlock()
	defer t.wg.Done()
	dropped := make(chan struct{})
	counted := t.admission.Enter(identity.PeerAddress(stream.Context()), func() { close(dropped) })
	defer counted.Leave()

	late := time.NewTimer(lease.HelloTimeout)
	defer late.Stop()
	select {
	case hello := <-said:
		err := t.session(run, stream, hello, counted.Admit, said, gone)
		if err != nil {
			t.config.Logger.Debug("session ended", "err", err)
		}
		return err
	case <-late.C:
		return status.Errorf(codes.DeadlineExceeded, "received no ticket within %v", lease.HelloTimeout)
	case <-gone:
		return status.Error(codes.Canceled, "the receiver disconnected before it sent a ticket")
	case <-dropped:
		return status.Error(codes.ResourceExhausted, "dropped without a ticket for newer receivers")
	case <-run.Done():
		return status.Error(codes.Unavailable, "the source is stopping")
	}
}

// session serves a receiver after its hello, until it or its lease ends. It calls admit once
// the ticket is redeemed. asks are the receiver's further messages.
func (t *Transport) session(run context.Context, stream grpc.ServerStream, message []byte, admit func() error, asks <-chan []byte, gone <-chan struct{}) (err error) {
	r := bytes.NewReader(message)
	refuse := func(b []byte) error { return stream.SendMsg(wrapperspb.Bytes(b)) }
	held, err := t.Accept(r, identity.PeerCertificate(stream.Context()), admit, refuse)
	if err != nil {
		return err
	}
	defer held.End()
	theirs, err := parseEndpoint(message[len(message)-r.Len():])
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	s := &session{connection: connection{t: t}, lease: held}
	if err := s.connectPair(theirs); err != nil {
		err = errors.Join(err, s.release())
		t.config.Logger.Warn("serving a receiver failed", "receiver", string(held.Receiver), "err", err)
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	// Inside the lease from here until the NIC serves the pair no more: that makes Revoke
	// a fence.
	if !held.Enter() {
		return errors.Join(status.Error(codes.PermissionDenied, "the grant is over"), s.release())
	}
	// Sends may block on a receiver that does not read, and Revoke must not.
	sent, say := make(chan error, 1), make(chan []byte, maxBuffers+1)
	say <- s.answer
	defer close(say)
	t.wg.Go(func() {
		for b := range say {
			if err := stream.SendMsg(wrapperspb.Bytes(b)); err != nil {
				sent <- err
				return
			}
		}
	})
	end := time.NewTimer(time.Until(held.Deadline))
	defer end.Stop()
	for waits := true; waits; {
		select {
		case err = <-sent:
			waits = false
		case ask := <-asks:
			var done []byte
			if done, err = s.packBlocks(ask); err != nil {
				waits = false
				break
			}
			select {
			case say <- done:
			default:
				err, waits = status.Error(codes.ResourceExhausted, "the receiver does not read the answers to its asks"), false
			}
		case <-held.Done():
			err, waits = status.Error(codes.PermissionDenied, "the grant is over"), false
		case <-end.C:
			err, waits = status.Error(codes.DeadlineExceeded, "the grant has expired"), false
		case <-gone:
			waits = false
		case <-run.Done():
			err, waits = status.Error(codes.Unavailable, "the source is stopping"), false
		}
	}
	fenced := s.fence()
	held.Leave()
	if fenced = errors.Join(fenced, s.release()); fenced != nil {
		t.config.Logger.Error("ending a connection failed", "err", fenced)
	}
	return err
}

// session is the source's end of one connection.
type session struct {
	connection
	lease  *lease.Lease
	answer []byte
	blocks []uint32 // of an ask
	packed int64    // bytes of all asks
}

// connectPair makes a pair that answers the receiver's endpoint, and the answer that
// describes it.
func (s *session) connectPair(theirs endpoint) (err error) {
	if err := s.acquireMemory(s.lease.Memory); err != nil {
		return err
	}
	if err := s.makePair(1, 1); err != nil {
		return err
	}
	own, err := s.state.endpointFor(s.nic.device, s.pair, theirs)
	if err != nil {
		return err
	}
	path, err := own.pathTo(s.nic, s.state, theirs)
	if err != nil {
		return err
	}
	if err := s.pair.Init(s.state.port.Number, verbs.RemoteRead); err != nil {
		return err
	}
	if err := s.pair.ReadyToReceive(path); err != nil {
		return err
	}
	m := s.lease.Memory
	if s.answer, err = lease.AppendWelcome(nil, m.Layout, m.Size()); err != nil {
		return err
	}
	s.answer = own.append(s.answer)
	k := remoteMemory{base: s.region.Base, key: s.region.RemoteKey, left: time.Until(s.lease.Deadline)}
	if s.region.bufferBytes > 0 {
		k.buffers, k.bufferBytes = bounceBuffers, uint64(s.region.bufferBytes)
	}
	s.answer = k.append(s.answer)
	return nil
}

// packBlocks packs the blocks of an ask, and returns the answer.
func (s *session) packBlocks(ask []byte) ([]byte, error) {
	if s.region.bufferBytes == 0 {
		return nil, status.Error(codes.InvalidArgument, "the receiver asked for packed blocks of a pool that it can read")
	}
	m := s.lease.Memory
	buffer, blocks, err := parseAsk(s.blocks[:0], ask, m.Blocks)
	s.blocks = blocks
	if err == nil {
		err = s.lease.CheckAnnounced(blocks)
	}
	size := int64(len(blocks)) * m.BlockBytes()
	if err == nil && (buffer >= bounceBuffers || size > s.region.bufferBytes) {
		err = fmt.Errorf("ask: %d blocks do not fit into buffer %d: there are %d buffers of %d bytes", len(blocks), buffer, bounceBuffers, s.region.bufferBytes)
	}
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if s.packed += size; s.packed > maxPoolReads*m.Size() {
		return nil, status.Errorf(codes.ResourceExhausted, "the receiver asked for too many blocks: %d bytes of a pool of %d", s.packed, m.Size())
	}
	if err := m.Device.Gather(s.region.memory.Bytes[int64(buffer)*s.region.bufferBytes:][:size], m.Layout, blocks); err != nil {
		s.nic.retireRegion(s.region)
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return binary.LittleEndian.AppendUint32(nil, buffer), nil
}

// fence ends the connection: after it the NIC answers the receiver no more. If the pair
// can neither be moved to the error state nor be destroyed, fence deregisters the memory.
func (s *session) fence() error {
	failed, closed := s.pair.MoveToError(), s.pair.Close()
	if failed != nil && closed != nil {
		return errors.Join(failed, closed, s.nic.deregister(s.region))
	}
	return errors.Join(failed, closed)
}
