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
	"github.com/cascadeinfer/cascade/migrator/device/health"
	"github.com/cascadeinfer/cascade/migrator/device/nvml"
	"github.com/cascadeinfer/cascade/migrator/device/topology"
	"github.com/cascadeinfer/cascade/migrator/transport/cuda"
)

// readInterval is the time between two readings of the GPUs' health, and for which NVML is
// left alone after it has failed.
const readInterval = 10 * time.Second

// Run watches the GPUs' health by NVML until ctx ends, from when one was opened. One that
// is not to be trusted is condemned (cuda.GPU.Condemn) until it is well again. A machine
// without NVML is watched by nobody, and that is no error. It may be called once.
func (g *Set) Run(ctx context.Context) error {
	select {
	case <-g.opened:
	case <-ctx.Done():
		return nil
	}
	for last := ""; ctx.Err() == nil; {
		err := g.watchHealth(ctx)
		if errors.Is(err, device.ErrNoLibrary) || errors.Is(err, device.ErrNoCgo) || errors.Is(err, nvml.ErrOtherLibrary) {
			g.config.Logger.Info("nobody watches the GPUs' health", "error", err)
			<-ctx.Done()
			return nil
		}
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			g.config.Logger.Warn("the GPUs' health cannot be watched for now; trying again", "error", err)
		}
		select {
		case <-time.After(g.interval):
		case <-ctx.Done():
		}
	}
	return nil
}

// watchHealth watches until NVML fails.
func (g *Set) watchHealth(ctx context.Context) (err error) {
	l, err := nvml.Open(nvml.Config{Library: g.config.NVML})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	g.readHealth(l)
	w, ctx := errgroup.WithContext(ctx)
	w.Go(func() error {
		err := l.WatchXids(ctx, g.handleXid)
		var lacks *device.SymbolError
		if errors.As(err, &lacks) { // readings say less, and later
			g.config.Logger.Info("GPUs' critical errors are not told", "error", err)
			return nil
		}
		if err != nil {
			g.readHealth(l) // a GPU that is lost ends the waiting for all
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

// handleXid takes a critical error of a GPU, by NVML's index.
func (g *Set) handleXid(index int, handleXid uint64) {
	g.reading.Lock()
	defer g.reading.Unlock()
	if index >= len(g.indices) || g.indices[index] == "" {
		g.config.Logger.Warn("a GPU that cannot be told reports a critical error", "index", index, "error", health.XidText(handleXid))
		return
	}
	at := g.indices[index]
	g.updateHealth(at, func(j *health.Tracker) {
		ours := j.RecordXid(handleXid)
		g.config.Logger.Warn("a GPU reports a critical error", "gpu", at, "error", health.XidText(handleXid), "of a program", !ours)
	})
}

// readHealth takes a reading.
func (g *Set) readHealth(l *nvml.Library) {
	g.reading.Lock()
	defer g.reading.Unlock()
	all, err := l.ReadHealth()
	if err != nil {
		g.config.Logger.Debug("a reading of the GPUs' health", "error", err)
	}
	var addresses []string // by index
	seen := make(map[string]bool)
	for i, one := range all {
		at := normalizeAddress(one.PCI.Address)
		if at == "" && i < len(g.indices) { // a GPU that is lost does not say where it is
			at = g.indices[i]
		}
		addresses, seen[at] = append(addresses, at), true
		if at != "" {
			g.updateHealth(at, func(j *health.Tracker) { j.RecordReading(one.Health) })
		}
	}
	g.indices = addresses
	g.mu.Lock()
	gone := slices.DeleteFunc(slices.Collect(maps.Keys(g.trackers)), func(at string) bool { return seen[at] })
	g.mu.Unlock()
	if len(all) > 0 {
		for _, at := range gone {
			g.updateHealth(at, func(j *health.Tracker) {
				j.RecordReading(topology.Health{Lost: "the driver does not show it any more"})
			})
		}
	}
}

// normalizeAddress is a PCI address as all write it.
func normalizeAddress(s string) string { return strings.ToLower(s) }

// updateHealth tells the judge of a GPU something, and the GPU what follows from it.
func (g *Set) updateHealth(at string, something func(*health.Tracker)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	j := g.trackers[at]
	if j == nil {
		j = &health.Tracker{}
		g.trackers[at] = j
	}
	problem, note := j.Problem(), j.Warning()
	something(j)
	if now := j.Problem(); now != problem && now != "" {
		g.config.Logger.Warn("a GPU is not trusted with KV any more", "gpu", at, "why", now)
	} else if now != problem {
		g.config.Logger.Info("a GPU is trusted with KV again", "gpu", at)
	}
	if now := j.Warning(); now != note {
		g.config.Logger.Info("a GPU's state", "gpu", at, "state", now)
	}
	for _, gpu := range g.gpus {
		g.applyHealthLocked(gpu)
	}
}

// applyHealthLocked tells a GPU what is thought of it.
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
