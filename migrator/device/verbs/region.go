package verbs

import (
	"errors"
	"fmt"
	"syscall"
)

// Access is what may be done to registered memory, besides being read by the own
// device.
type Access uint32

// The kinds of access; they are added.
const (
	LocalWrite  Access = 1
	RemoteWrite Access = 2 // needs LocalWrite
	RemoteRead  Access = 4
)

// MemoryRegion is registered memory: the device reaches it, and its pages stay where
// they are.
type MemoryRegion struct {
	Base                uint64 // the address that requests name its first byte by
	Length              uint64
	LocalKey, RemoteKey uint32 // its keys, for own requests and for those of a peer

	device *Device
	region uint64
	handle closeOnce
}

// Register registers memory of this process at an address.
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
		return nil, fmt.Errorf("verbs: %d bytes: %w", length, err)
	}
	return d.newRegion(v, uint64(address), length), nil
}

// RegisterDMABuf registers memory of another device that a descriptor stands for:
// length bytes from an offset on. Requests name them from base on. The error is a
// *device.SymbolError where the library is too old for it.
func (d *Device) RegisterDMABuf(fd int, offset, length, base uint64, access Access) (*MemoryRegion, error) {
	if !d.lib.functions.has(regDMABuf) {
		return nil, fmt.Errorf("verbs: %w", symbolError(regDMABuf))
	}
	v := words{d.domain, offset, length, base, uint64(fd), uint64(access)}
	if err := d.lib.do(regDMABuf, &v, nil); err != nil {
		return nil, fmt.Errorf("verbs: a dma-buf of %d bytes: %w", length, err)
	}
	return d.newRegion(v, base, length), nil
}

func (d *Device) newRegion(v words, base, length uint64) *MemoryRegion {
	d.lib.regions.Add(1)
	return &MemoryRegion{Base: base, Length: length, LocalKey: uint32(v[1]), RemoteKey: uint32(v[2]), device: d, region: v[0]}
}

// Close ends the registration: when it has returned, the device does not reach the
// memory any more. More calls return what the first did.
func (r *MemoryRegion) Close() error {
	return r.handle.close(func() error {
		err := r.device.lib.do(deregMR, &words{r.region}, nil)
		if err == nil {
			r.device.lib.regions.Add(-1)
		}
		return err
	})
}
