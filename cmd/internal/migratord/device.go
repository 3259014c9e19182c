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
	// DeviceErr returns why the device is unusable now, or nil.
	DeviceErr() error
}

// deviceCheckPeriod is the time between two checks of the engine's device.
const deviceCheckPeriod = 200 * time.Millisecond

// deviceDown returns why no KV can be written to the engine's memory: its device has failed, or is
// suspect. It returns nil while the engine is unavailable.
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

// watchDevice makes the executor check all transports again as soon as the engine's device fails,
// may be retried, or works again, so that the control plane learns their state.
func (d *Daemon) watchDevice(ctx context.Context) error {
	tick := time.NewTicker(deviceCheckPeriod)
	defer tick.Stop()
	var was error
	var tried time.Time // the last retry time that was handled
	for {
		now := d.deviceDown()
		if (now == nil) != (was == nil) {
			d.paths.ProbeNow()
			if now != nil {
				d.cfg.Logger.Warn("stopped receiving KV: the engine's memory is unusable", "reason", now)
			} else {
				d.cfg.Logger.Info("resumed receiving KV: the engine's memory is usable again")
			}
		}
		was = now
		var down *cuda.DownError
		if errors.As(now, &down) && !down.RetryAt.IsZero() && !down.RetryAt.Equal(tried) && time.Now().After(down.RetryAt) {
			tried = down.RetryAt
			d.paths.ProbeNow()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
