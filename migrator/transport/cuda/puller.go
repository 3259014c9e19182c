package cuda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
	"github.com/cascadeinfer/cascade/policies"
)

// Open presents a ticket and maps the source's pool. See transport.Transport.
func (t *Transport) Open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (transport.Puller, error) {
	return lease.Open(t.Name(), offer, func() (*puller, error) { return t.open(ctx, receiver, offer) })
}

func (t *Transport) open(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *puller, err error) {
	p := &puller{logger: t.Logger}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.release())
		}
	}()
	if p.memory, err = transport.HoldMemory(t.Pool); err != nil {
		return nil, err
	}
	own, err := t.deviceMemory(p.memory)
	if err != nil {
		return nil, err
	}
	p.gpu = own.gpu
	s, err := t.OpenSession(ctx, receiver, offer)
	if err != nil {
		return nil, err
	}
	p.session = s
	if s.File != nil {
		defer s.File.Close()
	}
	if err := s.Layout.CheckCompatible(p.memory.Layout); err != nil {
		return nil, err
	}
	handle, err := ParseHandle(s.Extra, s.Layout.MinSize())
	if err != nil {
		return nil, err
	}
	if (handle.Kind == VMM) != (s.File != nil) {
		return nil, errors.New("the source sent a descriptor without a VMM handle, or a VMM handle without a descriptor")
	}
	if err := p.gpu.checkPeerAccess(handle.GPU); err != nil {
		return nil, err
	}
	if err := p.gpu.withContext(nil, func(h *gpuContext) error { return p.mapPools(h, own, handle, s.File, offer.Address) }); err != nil {
		return nil, err
	}
	p.Puller = lease.NewPuller(lease.Steps{
		Transport: t.Name(), Local: p.memory, Remote: s.Layout, Copy: p.copyBlocks, Interrupt: s.Close, Release: p.release,
	})
	return p, nil
}

// checkPeerAccess returns why this GPU cannot read the memory of another GPU.
func (g *GPU) checkPeerAccess(uuid [16]byte) error {
	if uuid == g.info.UUID {
		return nil
	}
	n, err := g.config.Driver.Count()
	if err != nil {
		return err
	}
	for i := range n {
		d, err := g.config.Driver.Device(i)
		if err != nil {
			return err
		}
		if d.UUID != uuid {
			continue
		}
		can, err := g.config.Driver.CanAccess(g.config.Ordinal, i)
		if err == nil && !can {
			err = fmt.Errorf("gpu %d has no peer access to gpu %d; use tcp", g.config.Ordinal, i)
		}
		return err
	}
	return errors.New("the source's GPU is not visible to this process; use tcp")
}

// puller is one open pull: a connection, a stream and both pools in one context.
type puller struct {
	*lease.Puller
	gpu     *GPU
	logger  *slog.Logger
	session *lease.SocketSession
	memory  *transport.Memory
	context *gpuContext // of the fields below
	stream  *copyStream
	local   *mapping
	remote  *mapping
}

// mapPools maps both pools and acquires a stream.
func (p *puller) mapPools(h *gpuContext, own *Memory, theirs Handle, file *os.File, address string) (err error) {
	p.context = h
	if p.local, err = own.acquireMapping(h); err != nil {
		return err
	}
	k := mappingKey{address: address, id: theirs.ID}
	if p.remote, err = h.acquireMapping(k, func() (*mapping, error) {
		if theirs.ID == own.handle.ID { // the source is the local engine
			return nil, errors.New("the source's pool is the pool of this engine")
		}
		m, err := h.mapHandle(theirs, file, cuda.ReadOnly)
		if theirs.Kind == VMM && (cuda.HasCode(err, cuda.NotSupported) || cuda.HasCode(err, cuda.InvalidValue)) {
			p.logger.Warn("mapped the source's pool writable: the driver does not support read-only mappings", "source", address)
			m, err = h.mapHandle(theirs, file, cuda.ReadWrite)
		}
		return m, err
	}); err != nil {
		return err
	}
	if p.remote.size < p.session.Layout.MinSize() {
		return errors.New("the source's pool is larger than its mapping")
	}
	p.stream, err = h.acquireStream()
	return err
}

// copyBlocks copies the blocks of a plan on the GPU.
func (p *puller) copyBlocks(ctx context.Context, plan transport.Plan, bad []int) ([]int, error) {
	checkpoint := func() error { return p.Err(ctx) }
	if err := checkpoint(); err != nil {
		return bad, err
	}
	from, to := poolEnd{p.remote.pool, p.session.Layout}, poolEnd{p.local.pool, p.memory.Layout}
	if err := p.gpu.withContext(p.context, func(*gpuContext) (err error) {
		bad, err = p.stream.copyBlocks(p.gpu.config.Groups, from, to, plan, bad, checkpoint)
		return err
	}); err != nil {
		return bad, err
	}
	if err := checkpoint(); err != nil {
		return bad, err
	}
	return bad, p.session.Check(ctx)
}

// release gives back the connection, what the pull uses on the GPU, and the memory.
func (p *puller) release() error {
	if p.session != nil {
		p.session.Close()
	}
	var err error
	if p.context != nil {
		// A context that has been closed has given everything back already.
		err = p.gpu.withContext(p.context, func(h *gpuContext) error {
			now := time.Now()
			if p.local != nil {
				h.releaseMapping(p.local, now)
			}
			if p.remote != nil {
				h.releaseMapping(p.remote, now)
			}
			if p.stream == nil {
				return nil
			}
			return h.releaseStream(p.stream)
		})
		if errors.Is(err, errContextClosed) {
			err = nil
		}
	}
	if p.memory != nil {
		p.memory.Release()
	}
	return err
}
