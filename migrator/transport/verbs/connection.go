package verbs

import (
	"errors"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// connection is the local end of a connection: a queue pair, and the memory that goes through it.
type connection struct {
	t      *Transport
	nic    *nic
	region *region
	queue  *verbs.CompletionQueue
	pair   *verbs.QueuePair
	state  portState // of the nic
}

// acquireMemory opens the device and registers a pool, which the caller holds. The connection must be released, also
// after an error.
func (c *connection) acquireMemory(m *transport.Memory) (err error) {
	if c.nic, err = c.t.acquireNIC(); err != nil {
		return err
	}
	c.region, err = c.nic.acquireRegion(m)
	return err
}

// makePair makes a pair with room for so many requests, each of so many pieces of local memory.
func (c *connection) makePair(requests, pieces int) (err error) {
	if c.queue, err = c.nic.device.NewCompletionQueue(requests); err != nil {
		return err
	}
	if c.pair, err = c.nic.device.NewQueuePair(c.queue, requests, pieces); err != nil {
		return err
	}
	c.state, err = c.nic.portState()
	return err
}

// release gives back what the connection has acquired. If the pair cannot be destroyed, the NIC may still reach the
// memory: only deregistering that is sure to stop it. It also fails the other connections of the region, whose memory is
// never released if that fails, too.
func (c *connection) release() error {
	var err error
	if c.pair != nil {
		if err = c.pair.Close(); err != nil {
			err = errors.Join(err, c.nic.deregister(c.region))
		}
	}
	if c.queue != nil {
		err = errors.Join(err, c.queue.Close())
	}
	if c.region != nil {
		err = errors.Join(err, c.nic.releaseRegion(c.region, c.t.config.Pool))
	}
	if c.nic != nil {
		err = errors.Join(err, c.t.releaseNIC(c.nic))
	}
	return err
}
