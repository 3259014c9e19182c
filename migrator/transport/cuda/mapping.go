package cuda

import (
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
)

// mappingKey identifies a mapping: the source's address and the pool's ID, or the local
// pool.
type mappingKey struct {
	address string
	id      [16]byte
	own     *Memory
}

// mapping is a pool mapped into the context.
type mapping struct {
	pool  cuda.Pointer // of the first byte
	size  int64        // from pool to the end of the allocation
	close func() error
	// outlivesContext means that the mapping does not end with the context.
	outlivesContext bool
	// persistent means that the mapping is kept until its pool or the context is closed.
	persistent bool
	users      int
	idleSince  time.Time // when the last user released it
}

// acquireMapping returns a mapping, and makes it with open if there is none. It is given
// back by releaseMapping.
func (h *gpuContext) acquireMapping(k mappingKey, open func() (*mapping, error)) (*mapping, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.mappings[k]
	if m == nil {
		var err error
		if m, err = open(); err != nil {
			return nil, err
		}
		h.mappings[k] = m
	}
	m.users++
	return m, nil
}

// keepMapping makes a mapping persistent.
func (h *gpuContext) keepMapping(m *mapping) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.persistent = true
}

// releaseMapping ends one use.
func (h *gpuContext) releaseMapping(m *mapping, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.users--
	m.idleSince = now
}
