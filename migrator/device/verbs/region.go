package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// Access is what may be done to registered memory, besides reads by the local device.
type Access uint32

// The kinds of access, which may be combined.
const (
	LocalWrite Access = 1
	RemoteRead Access = 4
)

// MemoryRegion is registered memory: the device can access it, and its pages stay in
// place.
type MemoryRegion struct {
	Base                uint64 // the address of its first byte in requests
	LocalKey, RemoteKey uint32 // its keys, for local requests and for those of a peer

	device *Device
	region uint64
	handle closeOnce
}

// Register registers memory of this process.
func (d *Device) Register(address uintptr, length uint64, access Access) (*MemoryRegion, error) {
	if err := checkMemlock(length); err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	v := words{d.domain, uint64(address), length, uint64(access)}
	if err := d.lib.do(regMR, &v, nil); err != nil {
		var e *Error
		if errors.As(err, &e) && e.Errno == syscall.ENOMEM {
			e.Hint = memlockHint
		}
		return nil, fmt.Errorf("verbs: register %d bytes: %w", length, err)
	}
	return d.newRegion(v, uint64(address)), nil
}

// RegisterDMABuf registers memory of another device by its descriptor: length bytes from
// an offset on, which requests address from base on. The error is a *device.SymbolError
// if the library is too old.
func (d *Device) RegisterDMABuf(fd int, offset, length, base uint64, access Access) (*MemoryRegion, error) {
	if !d.lib.has(regDMABuf) {
		return nil, fmt.Errorf("verbs: %w", symbolError(regDMABuf))
	}
	v := words{d.domain, offset, length, base, uint64(fd), uint64(access)}
	if err := d.lib.do(regDMABuf, &v, nil); err != nil {
		return nil, fmt.Errorf("verbs: register a dma-buf of %d bytes: %w", length, err)
	}
	return d.newRegion(v, base), nil
}

func (d *Device) newRegion(v words, base uint64) *MemoryRegion {
	d.lib.regions.Add(1)
	return &MemoryRegion{Base: base, LocalKey: uint32(v[1]), RemoteKey: uint32(v[2]), device: d, region: v[0]}
}

// Close ends the registration: when it has returned, the device does not access the
// memory any more. Further calls return the result of the first one.
func (r *MemoryRegion) Close() error {
	return r.handle.close(func() error {
		err := r.device.lib.do(deregMR, &words{r.region}, nil)
		if err == nil {
			r.device.lib.regions.Add(-1)
		}
		return err
	})
}
