package migratord

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

var _ deviceMemory = (*cuda.Memory)(nil)

// deviceMemory is a pool in the memory of a device that may fail.
type deviceMemory interface {
	// DeviceErr returns why the device cannot be used now, or nil.
	DeviceErr() error
}

// deviceCheckPeriod is how often it is looked at whether the engine's device works.
const deviceCheckPeriod = 200 * time.Millisecond

// deviceDown says why no KV can be put into the engine's memory: the device that it is on has
// failed, or is not trusted. It is nil while the engine is away.
func (d *Daemon) deviceDown() error {
	m, ok := d.memory()
	if !ok {
		return nil
	}
	device, ok := m.Device.(deviceMemory)
	if !ok {
		return nil
	}
	return device.DeviceErr()
}

// watchDevice has all transports looked at again as soon as the engine's device fails,
// may be tried again, or works again: what they say is what the control plane hears.
func (d *Daemon) watchDevice(ctx context.Context) error {
	tick := time.NewTicker(deviceCheckPeriod)
	defer tick.Stop()
	var was error
	var tried time.Time // the latest time to try again at which that was done
	for {
		now := d.deviceDown()
		if (now == nil) != (was == nil) {
			d.executor.ProbeNow()
			if now != nil {
				d.cfg.Logger.Warn("no KV is taken: the engine's memory cannot be used", "why", now)
			} else {
				d.cfg.Logger.Info("KV is taken again: the engine's memory can be used")
			}
		}
		was = now
		var down *cuda.DownError
		if errors.As(now, &down) && !down.RetryAt.IsZero() && !down.RetryAt.Equal(tried) && time.Now().After(down.RetryAt) {
			tried = down.RetryAt
			d.executor.ProbeNow()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
