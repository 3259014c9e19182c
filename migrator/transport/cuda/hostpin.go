package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
)

// Pin makes the GPU read and write b, in host memory, directly: no processor copies then
// what Gather and Scatter copy to and from b. b must be a mapping, and stay mapped until
// unpin, which is called until it succeeds, has returned nil. A GPU whose context was
// made again pins b again on first use.
func (m *Memory) Pin(b []byte) (unpin func() error, err error) {
	g := m.gpu
	p := &hostPin{memory: b}
	g.pinsMu.Lock()
	g.pins = append(g.pins, p)
	g.pinsMu.Unlock()
	forget := func() error {
		g.mu.Lock()
		h := g.current
		g.mu.Unlock()
		if h != nil {
			if err := g.withContext(h, func(h *gpuContext) error { return h.unregisterPin(p) }); err != nil && !errors.Is(err, errContextClosed) && !cuda.Sticky(err) {
				return fmt.Errorf("host memory stays pinned for gpu %d: %w", g.config.Ordinal, err)
			}
		}
		g.pinsMu.Lock()
		defer g.pinsMu.Unlock()
		g.pins = slices.DeleteFunc(g.pins, func(o *hostPin) bool { return o == p })
		return nil
	}
	if err := g.withContext(nil, func(h *gpuContext) error {
		_, err := h.registerPin(p)
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("pin host memory for gpu %d: %w", g.config.Ordinal, err), forget())
	}
	return forget, nil
}

// hostPin is host memory that a GPU reads and writes directly.
type hostPin struct{ memory []byte }

// registerPin registers a pin with the context, unless it is registered.
func (h *gpuContext) registerPin(p *hostPin) (*cuda.HostMemory, error) {
	h.pinMu.Lock()
	defer h.pinMu.Unlock()
	if host := h.pins[p]; host != nil {
		return host, nil
	}
	host, err := h.context.RegisterHost(p.memory)
	if err == nil {
		h.pins[p] = host
	}
	return host, err
}

// unregisterPin ends the registration. After an error the pin stays registered.
func (h *gpuContext) unregisterPin(p *hostPin) error {
	h.pinMu.Lock()
	defer h.pinMu.Unlock()
	host := h.pins[p]
	if host == nil {
		return nil
	}
	err := host.Close()
	if err == nil {
		delete(h.pins, p)
	}
	return err
}

// pinnedPointer returns the GPU's address of pinned host memory, 0 if b is not pinned.
func (g *GPU) pinnedPointer(h *gpuContext, b []byte) cuda.Pointer {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	g.pinsMu.Lock()
	i := slices.IndexFunc(g.pins, func(p *hostPin) bool {
		begin := uintptr(unsafe.Pointer(unsafe.SliceData(p.memory)))
		return first >= begin && first+uintptr(len(b)) <= begin+uintptr(len(p.memory))
	})
	var p *hostPin
	if i >= 0 {
		p = g.pins[i]
	}
	g.pinsMu.Unlock()
	if p == nil {
		return 0
	}
	host, err := h.registerPin(p)
	if err != nil {
		return 0 // then a processor copies
	}
	return host.Pointer() + cuda.Pointer(first-uintptr(unsafe.Pointer(unsafe.SliceData(p.memory))))
}
