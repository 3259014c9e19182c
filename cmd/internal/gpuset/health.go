package gpuset

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/migrator/device"
	"github.com/cascadeinfer/cascade/migrator/device/inventory"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// readInterval is the time between two readings of the GPUs' health, and between two
// attempts to open NVML.
const readInterval = 10 * time.Second

// Run watches the GPUs' health by NVML, from the opening of the first GPU until ctx ends. It marks
// a GPU with a problem as unhealthy (cuda.GPU.MarkUnhealthy) until the problem is over. On a host
// without NVML it watches nothing and returns no error. It may be called once.
func (g *Set) Run(ctx context.Context) error {
	select {
	case <-g.opened:
	case <-ctx.Done():
		return nil
	}
	for last := ""; ctx.Err() == nil; {
		err := g.watchHealth(ctx)
		if errors.Is(err, device.ErrNoLibrary) || errors.Is(err, device.ErrNoCgo) {
			g.config.Logger.Info("GPU health is not watched: NVML is not available", "error", err)
			<-ctx.Done()
			return nil
		}
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			g.config.Logger.Warn("watching GPU health failed; retrying", "error", err)
		}
		select {
		case <-time.After(g.interval):
		case <-ctx.Done():
		}
	}
	return nil
}

// watchHealth watches the GPUs' health until NVML fails.
func (g *Set) watchHealth(ctx context.Context) (err error) {
	l, err := inventory.OpenNVML(inventory.NVMLConfig{Library: g.config.NVML})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	g.readHealth(l)
	w, ctx := errgroup.WithContext(ctx)
	w.Go(func() error {
		err := l.WatchXids(ctx, g.handleXid)
		var lacks *device.SymbolError
		if errors.As(err, &lacks) { // without events, only the periodic readings report problems, later and fewer
			g.config.Logger.Info("critical errors of GPUs are not watched: the driver is too old", "error", err)
			return nil
		}
		if err != nil {
			g.readHealth(l) // a lost GPU ends the wait for all GPUs
		}
		return err
	})
	w.Go(func() error {
		tick := time.NewTicker(g.interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				g.readHealth(l)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return w.Wait()
}

// handleXid records a critical error of a GPU, by NVML's index.
func (g *Set) handleXid(index int, handleXid uint64) {
	g.reading.Lock()
	defer g.reading.Unlock()
	if index >= len(g.indices) || g.indices[index] == "" {
		g.config.Logger.Warn("an unknown GPU reported a critical error", "index", index, "error", inventory.XidText(handleXid))
		return
	}
	at := g.indices[index]
	g.updateHealth(at, func(j *inventory.HealthTracker) {
		counts := j.RecordXid(handleXid)
		g.config.Logger.Warn("a GPU reported a critical error", "gpu", at, "error", inventory.XidText(handleXid), "application_error", !counts)
	})
}

// readHealth reads the health of all GPUs.
func (g *Set) readHealth(l *inventory.NVMLLibrary) {
	g.reading.Lock()
	defer g.reading.Unlock()
	all, err := l.ReadHealth()
	if err != nil {
		g.config.Logger.Debug("reading GPU health failed", "error", err)
	}
	var addresses []string // PCI addresses by NVML's index
	seen := make(map[string]bool)
	for i, one := range all {
		at := normalizeAddress(one.PCI.Address)
		if at == "" && i < len(g.indices) { // a lost GPU does not report its address
			at = g.indices[i]
		}
		addresses, seen[at] = append(addresses, at), true
		if at != "" {
			g.updateHealth(at, func(j *inventory.HealthTracker) { j.RecordReading(one.Health) })
		}
	}
	g.indices = addresses
	g.mu.Lock()
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(g.trackers)), func(at string) bool { return seen[at] })
	g.mu.Unlock()
	if len(all) > 0 {
		for _, at := range gone {
			g.updateHealth(at, func(j *inventory.HealthTracker) {
				j.RecordReading(topology.Health{Lost: "the driver does not list it any more"})
			})
		}
	}
}

// normalizeAddress returns a PCI address in lower case.
func normalizeAddress(s string) string { return strings.ToLower(s) }

// updateHealth updates the tracker of a GPU, logs changes, and applies the result to the open GPUs.
func (g *Set) updateHealth(at string, update func(*inventory.HealthTracker)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	j := g.trackers[at]
	if j == nil {
		j = &inventory.HealthTracker{}
		g.trackers[at] = j
	}
	problem, note := j.Problem(), j.Warning()
	update(j)
	if now := j.Problem(); now != problem && now != "" {
		g.config.Logger.Warn("GPU became unhealthy; it receives no KV", "gpu", at, "cause", now)
	} else if now != problem {
		g.config.Logger.Info("GPU became healthy again", "gpu", at)
	}
	if now := j.Warning(); now != note {
		g.config.Logger.Info("GPU warning changed", "gpu", at, "warning", now)
	}
	for _, gpu := range g.gpus {
		g.applyHealthLocked(gpu)
	}
}

// applyHealthLocked marks a GPU as healthy or unhealthy according to its tracker.
func (g *Set) applyHealthLocked(gpu *cuda.GPU) {
	j := g.trackers[normalizeAddress(gpu.Device().PCI)]
	if j == nil {
		return
	}
	if problem := j.Problem(); problem != "" {
		gpu.MarkUnhealthy(errors.New(problem))
		return
	}
	gpu.MarkUnhealthy(nil)
}
